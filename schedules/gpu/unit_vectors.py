"""Functions without a reduction whose result is float16 or int8 in blocks of 16 bytes.

A work-item has the channels of a block of a pixel: it stores them at once, and loads those at once
that lie side by side. CUDA has no vectors of float16 that the generic rule could use, and of int8
none of 16.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import (
    count_reductions,
    inline_spatial,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import each, hold, int32
from tvm_edge.schedules.gpu.blocked_kernel import epilogue_in_blocks
from tvm_edge.schedules.gpu.pixel_cells import WHOLE_PIXELS
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of

__all__ = ["UnitVectors"]


class UnitVectors(ScheduleRule):
    """Element-wise functions, and packing, of images in channel blocks of 16 bytes."""

    name = "unit_vectors"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one block that stores such an image."""
        result = buffers_of(func)[-1] if buffers_of(func) else None
        if not spec.tensor_cores or result is None or not _in_blocks(result):
            return None
        if count_reductions(func) != 0:
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        blocks = root_blocks(sch)
        if len(blocks) != 1:
            return None
        stmt, made = sch.get(blocks[0]), sch.mod["main"]
        if not isinstance(stmt, s_tir.SBlock) or not isinstance(stmt.body, tirx.BufferStore):
            return None
        shape = [constant(var.dom.extent) for var in stmt.iter_vars]
        if len(shape) != 5 or None in shape or 0 in shape:
            return None
        if not stmt.body.buffer.same_as(made.params[-1]):
            return None
        if str(stmt.iter_vars[0].var.ty.dtype) != "int32":
            return None  # too large for indices of 32 bits
        return _kernel(made, stmt, [size or 1 for size in shape], spec)


def _in_blocks(result: tirx.Buffer) -> bool:
    shape = [constant(size) for size in result.shape]
    halves_or_bytes = str(result.dtype) in ("float16", "int8")
    return halves_or_bytes and len(shape) == 5 and shape[-1] == BLOCKS[str(result.dtype)]


def _kernel(
    func: tirx.PrimFunc, block: s_tir.SBlock, shape: list[int], spec: DeviceSpec
) -> tirx.PrimFunc:
    images, blocks, lines, columns, lanes = shape
    items = 1 if WHOLE_PIXELS in block.annotations else blocks  # of a pixel

    def body(flat: list[Any]) -> None:
        epilogue = epilogue_in_blocks(func, block, shape, lanes, flat)
        values = [tirx.const(0, "float32")] * lanes

        def write(at: tirx.Expr) -> None:
            pixel = hold(tirx.floormod(at, lines * columns))
            rest = tirx.floordiv(at, lines * columns)
            first = int32(0) if items == 1 else hold(tirx.floormod(rest, items))
            image = int32(0) if images == 1 else hold(tirx.floordiv(rest, items))
            for own in range(blocks // items):
                epilogue.write_lanes((image, first + own, pixel, int32(0)), values, [])

        each(spec, images * items * lines * columns, write)

    return kernel_of(func, [], body)
