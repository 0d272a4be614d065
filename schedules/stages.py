"""The stages around a reduction: what its input is read through, and its epilogue."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import s_tir, sym, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_sblock_info
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import Access, accesses, constant, is_copy
from tvm_edge.schedules.analysis import (
    count_reductions,
    inline_spatial,
    is_plain,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.contraction import Contraction, match_contraction
from tvm_edge.schedules.float16 import HALVES
from tvm_edge.schedules.words import factors_of

__all__ = [
    "ReductionRule",
    "aligned_consumer",
    "axis_map",
    "epilogue_of",
    "epilogue_stores_in_order",
    "fuse",
    "fuse_axes",
    "fuse_lines",
    "fuse_stage",
    "isolate",
    "open_contraction",
    "open_reduction",
    "read_index",
]


def fuse(sch: Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """One loop out of a chain of one or more."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def open_reduction(func: tirx.PrimFunc, name: str = "") -> tuple[Schedule, SBlockRV] | None:
    """A schedule of a function with one reduction among spatial blocks, and that reduction.

    ``None`` as well if the reduction's name begins otherwise than `name`.
    """
    # Up to ten rules look at a function, one after the other.
    if _LAST.func is not func:
        _LAST.opened, _LAST.func = _open(func), func
    if _LAST.opened is None:
        return None
    sch, block = _LAST.opened
    if not sch.get(block).name_hint.startswith(name):
        return None
    return sch.copy(), block


class _Last(threading.local):
    """The function that was opened last, and its schedule."""

    func: tirx.PrimFunc | None = None
    opened: tuple[Schedule, SBlockRV] | None = None


_LAST = _Last()


def _open(func: tirx.PrimFunc) -> tuple[Schedule, SBlockRV] | None:
    if count_reductions(func) != 1:
        return None
    sch = open_schedule(func)
    blocks = [get_sblock_info(sch, block) for block in root_blocks(sch)]
    return sch, next(block.block_rv for block in blocks if not block.is_injective())


class ReductionRule(ScheduleRule):
    """Family of kernels with one reduction among spatial blocks."""

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | tirx.PrimFunc | None:
        """Schedule `func` if it has one reduction, and one of this family."""
        opened = open_reduction(func)
        return None if opened is None else self.schedule(*opened, spec)

    @abstractmethod
    def schedule(
        self, sch: Schedule, block: SBlockRV, spec: DeviceSpec
    ) -> Schedule | tirx.PrimFunc | None:
        """Schedule the reduction `block` and all around it; ``None`` if another rule should try."""


def open_contraction(
    func: tirx.PrimFunc, accumulator_dtype: str = "float32"
) -> tuple[Schedule, SBlockRV, Contraction] | None:
    """Open a function with one sum of products of float32, 16-bit floats or 8-bit numbers.

    Returns what :func:`open_reduction` does. `accumulator_dtype` is float32 or int32.
    """
    opened = open_reduction(func)
    if opened is None:
        return None
    sch, block = opened
    conv = match_contraction(sch.get(block), open_axes=True)
    if conv is None or str(sch.get(block).writes[0].source.dtype) != accumulator_dtype:
        return None
    known = {"float32", *HALVES}
    if accumulator_dtype == "int32":  # what follows them is anything
        known |= {"int8", "uint8", "int32"}
    params = sch.mod["main"].params
    if any(isinstance(p.ty, tirx.BufferType) and str(p.dtype) not in known for p in params):
        return None
    return sch, block, conv


def isolate(
    sch: Schedule, block: SBlockRV, data: tirx.Buffer, keep: Sequence[str] = ()
) -> SBlockRV | None:
    """Inline all spatial blocks but the last before and the first after the reduction `block`.

    Those of the names in `keep` stay as well. Returns the block that pads `data`, ``None`` if
    `data` then is a parameter of the function.
    """
    stage = None
    for producer in sch.get_producers(block):
        if sch.get(producer).writes[0].source.same_as(data):
            stage = producer
    inline_spatial(sch, keep=[*keep, *([] if stage is None else [sch.get(stage).name_hint])])
    if stage is not None and is_copy(sch.get(stage)):
        # topi emits a padding by zero as a copy.
        sch.compute_inline(stage)
        return None
    return stage


def aligned_consumer(sch: Schedule, block: SBlockRV, *, shorter: bool = False) -> SBlockRV | None:
    """The only consumer of a reduction's result, if it reads each element once, in their order.

    With `shorter` it may leave out the last ones of the last axis.
    """
    accumulators = sch.get(block).writes[0].source
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_plain(sch, consumers[0]):
        return None
    if len(sch.get_producers(consumers[0])) != 1:
        return None  # ``reverse_compute_at`` wants all of them at the same loop
    stmt = sch.get(consumers[0])
    if any(v.iter_type != tirx.IterVar.DataPar for v in stmt.iter_vars):
        return None
    sizes = [v.dom.extent for v in stmt.iter_vars]
    lengths = list(accumulators.shape)
    if len(sizes) != len(lengths):
        return None
    if shorter and (constant(sizes[-1]) or 0) <= (constant(lengths[-1]) or 0):
        lengths[-1] = sizes[-1]
    if not all(map(_are_equal, lengths, sizes)):
        return None  # a padding: the loops of the reduction would not reach its end
    reads = [a for a in accesses(stmt)[0] if a.buffer.same_as(accumulators)]
    return consumers[0] if all(_indexed_by(access, stmt) for access in reads) else None


def epilogue_of(sch: Schedule, block: SBlockRV, *, shorter: bool = False) -> SBlockRV:
    """The block that takes a reduction's accumulators out of their buffer, over the same axes.

    That is the reduction's consumer (bias, residual and activation inlined into it) or, where it
    has none of that form, a copy made for the purpose. `shorter` is that of
    :func:`aligned_consumer`.
    """
    return aligned_consumer(sch, block, shorter=shorter) or sch.cache_write(block, 0, "local")


def epilogue_stores_in_order(
    func: tirx.PrimFunc, block: s_tir.SBlock, epilogue: s_tir.SBlock, *, product: bool = True
) -> bool:
    """Return whether `epilogue` stores the result of `block` element by element, in its order.

    Each accumulator is then used once, where it stands; a kernel that is written out may keep them
    wherever it likes. `block` adds up products, unless they are not asked for.
    """
    if (
        any(constant(v.dom.extent) == 0 for v in block.iter_vars)
        or str(block.iter_vars[0].var.ty.dtype) != "int32"
    ):
        return False
    if product and factors_of(block) is None:
        return False
    written = block.body.indices
    spatial = [v.var for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if len(written) != len(spatial) or len(epilogue.iter_vars) != len(spatial):
        return False
    if not all(a.same_as(b) for a, b in zip(written, spatial, strict=True)):
        return False
    if not isinstance(epilogue.body, tirx.BufferStore) or len(epilogue.writes) != 1:
        return False
    return bool(epilogue.writes[0].source.same_as(func.params[-1]))


def _are_equal(one: tirx.Expr, other: tirx.Expr) -> bool:
    """Return whether two lengths are equal, whatever those of the run."""
    return bool(sym.Analyzer().can_prove_equal(one, other))


def _indexed_by(access: Access, block: s_tir.SBlock) -> bool:
    return len(access.indices) == len(block.iter_vars) and all(
        index.same_as(var.var) or constant(var.dom.extent) == 1
        for index, var in zip(access.indices, block.iter_vars, strict=True)
    )


def read_index(block: s_tir.SBlock, buffer: tirx.Buffer) -> int:
    """Position of `buffer` among the reads of a block."""
    return next(i for i, region in enumerate(block.reads) if region.source.same_as(buffer))


Mapping = Callable[[list[tirx.Expr]], list[tirx.Expr]]


def axis_map(block: s_tir.SBlock, rank: int, mapping: Mapping) -> tirx.IndexMap:
    """`mapping` of a block's variables or a buffer's indices, `rank` of them."""
    dtype = str(block.iter_vars[0].var.ty.dtype)
    return tirx.IndexMap.from_func(lambda *v: mapping(list(v)), ndim=rank, index_dtype=dtype)


def fuse_axes(sch: Schedule, block: SBlockRV, epilogue: SBlockRV, first: int) -> None:
    """Fuse axis `first` of a reduction's result with the next one, in it and in its epilogue."""
    width = constant(sch.get(block).iter_vars[first + 1].dom.extent)
    for which in (block, epilogue):
        _fuse_axis(sch, which, first, width)
    _fuse_dimension(sch, block, first, width)


def fuse_stage(sch: Schedule, stage: SBlockRV, first: int) -> None:
    """Fuse axis `first` of a stage before a reduction with the next one, in its result as well."""
    width = constant(sch.get(stage).iter_vars[first + 1].dom.extent)
    _fuse_axis(sch, stage, first, width)
    _fuse_dimension(sch, stage, first, width)


def _fuse_axis(sch: Schedule, block: SBlockRV, first: int, width: int | None) -> None:
    stmt = sch.get(block)
    mapping = axis_map(stmt, len(stmt.iter_vars), _fused(first, width))
    sch.transform_block_layout(block, mapping)


def _fuse_dimension(sch: Schedule, block: SBlockRV, first: int, width: int | None) -> None:
    stmt = sch.get(block)
    mapping = axis_map(stmt, len(stmt.writes[0].source.shape), _fused(first, width))
    sch.transform_layout(block, ("write", 0), mapping)


def _fused(first: int, width: int | None) -> Mapping:
    return lambda v: [*v[:first], v[first] * width + v[first + 1], *v[first + 2 :]]


def fuse_lines(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, conv: Contraction
) -> Contraction:
    """Fuse lines and columns of a pointwise contraction and its epilogue into one axis."""
    first = conv.lines
    assert first is not None
    fuse_axes(sch, block, epilogue, first)
    stmt = sch.get(block)
    left = range(len(stmt.iter_vars))
    position = {p if p < conv.columns else p + 1: p for p in left if p != first}
    fused_conv = conv.moved(stmt, {**position, conv.columns: first})
    return replace(fused_conv, strides=(1, 1))
