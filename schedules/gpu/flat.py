"""Element-wise functions of open shapes, whose elements are taken in the order of memory.

Where every tensor is read at the place that is written, places on axes need not be known: they
would be remainders of divisions by lengths of the run.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import accesses
from tvm_edge.schedules.analysis import (
    count_reductions,
    inline_spatial,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import either, launch, when
from tvm_edge.schedules.gpu.written import kernel_of, tensors_of
from tvm_edge.schedules.open_lengths import ceil_div, has_open_lengths, total
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.workgroup import group_size

__all__ = ["Flat"]


class Flat(ScheduleRule):
    """Functions of one result whose tensors all have its shape, which is open."""

    name = "flat"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such function with 32-bit indices."""
        if not has_open_lengths(func) or count_reductions(func) != 0:
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        blocks, main = root_blocks(sch), sch.mod["main"]
        stmt = sch.get(blocks[0])
        if len(blocks) != 1 or not _is_flat(stmt) or len(stmt.writes) != 1:
            return None
        if not stmt.writes[0].source.same_as(main.params[-1]):
            return None
        own = [param for param in main.params if isinstance(param.ty, tirx.BufferType)]
        *_, (shape, _dtype) = tensors_of(main)

        def body(flat: list[Any]) -> None:
            def put(at: tirx.Expr) -> None:
                def on_load(load: ir.TensorLoad) -> Any:
                    found = (f for p, f in zip(own, flat, strict=True) if p.same_as(load.source))
                    return next(found)[at]

                value = tvm_ffi.structural_map(stmt.body.value, (ir.TensorLoad, on_load))
                flat[-1][at] = value

            count = total(shape)
            size = group_size(typical(count), spec)
            with launch(ceil_div(count, size), size) as (group, item):
                at = group * size + item

                def last() -> None:
                    with when(at < count):
                        put(at)

                # A compiler that makes vectors of work-items does so without a condition alone.
                either((group + 1) * size <= count, lambda: put(at), last)

        return kernel_of(main, [], body)


def _is_flat(block: s_tir.SBlock) -> bool:
    """Return whether all tensors have the shape of a block's loops, and are indexed by them."""
    if not isinstance(block.body, tirx.BufferStore) or not block.iter_vars:
        return False
    if str(block.iter_vars[0].var.ty.dtype) != "int32":
        return False
    found, outside = accesses(block)
    sizes = [var.dom.extent for var in block.iter_vars]
    variables = [var.var for var in block.iter_vars]
    if any(used.same_as(var) for used in outside for var in variables):
        return False
    return all(
        len(access.indices) == len(sizes)
        and all(a.same_as(b) for a, b in zip(access.indices, variables, strict=True))
        and all(map(tvm_ffi.structural_equal, access.buffer.shape, sizes))
        for access in found
    )
