"""Dense and grouped convolutions of blocked images by groups of channels: register tiles.

The tiles and tasks are those of :mod:`tvm_edge.schedules.cpu.blocked`: where that multiplies a
vector of filters by a pixel's channel, this takes four channels of 8 bits, or two of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.cpu.bias_first import begin_with_bias
from tvm_edge.schedules.cpu.blocked import open_conv
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, Tile, stride_of, touched
from tvm_edge.schedules.cpu.dot_products import DotProduct
from tvm_edge.schedules.cpu.matrix_products import CHANNELS, by_matrices, copied
from tvm_edge.schedules.cpu.stages import schedule_rest

__all__ = ["Conv2dGroups", "by_groups", "groups_tile"]

_MOST_TAPS = 3
# Registers for filters.
_BESIDE = 4


class Conv2dGroups(ScheduleRule):
    """Convolutions of :func:`tvm_edge.schedules.channel_groups.conv2d_groups`.

    Parameters
    ----------
    name : str
        Of the block that sums.
    instruction : function of DeviceSpec
        What multiplies groups; ``None`` on CPUs that have none.
    """

    def __init__(self, name: str, instruction: Callable[[DeviceSpec], DotProduct | None]) -> None:
        self.name = name
        self._instruction = instruction

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Schedule `func` if its one reduction is such a convolution."""
        dot = self._instruction(spec)
        conv = open_conv(func, self.name) if dot is not None else None
        if conv is None or dot is None:
            return None
        stmt = conv.sch.get(conv.block)
        size = groups_tile(stmt, padded=conv.stage is not None)
        copy = copied(conv.sch, conv.block, conv.epilogue) if size.pairs else None
        group = constant(stmt.reads[1].source.shape[-1]) or 1
        knobs = conv.knobs(size, spec)
        taps = _taps(knobs, size, spec)
        init, done = conv.begun(knobs, spec, 1, vectorize=False, taps=taps)
        schedule_rest(conv.sch, done if copy is None else [*done, copy], spec)
        if copy is not None:
            by_matrices(conv.sch, init, conv.block, copy, size.strides[1])
            return conv.sch.mod["main"]
        names = conv.sch.get(init).name_hint, conv.sch.get(conv.epilogue).name_hint
        by_groups(conv.sch, init, conv.block, dot.lanes, dot.broadcast(group))
        return begin_with_bias(conv.sch.mod["main"], *names)


def _taps(knobs: Knobs, size: Tile, spec: DeviceSpec) -> int:
    """Return how many taps of a window are unrolled, on a core that waits for its first loads.

    Those whose vectors of pixels, which they share, stay in registers beside the accumulators.
    """
    if not spec.in_order or spec.dot_product != "sdot" or knobs.blocks > 1:
        return 0
    pixels = knobs.lines * ((knobs.columns - 1) * size.strides[1] + _MOST_TAPS)
    accumulators = knobs.lines * knobs.columns * size.vectors(spec)
    return _MOST_TAPS if accumulators + pixels <= spec.vector_registers - _BESIDE else 0


def by_groups(sch: Schedule, init: SBlockRV, block: SBlockRV, lanes: int, intrinsic: str) -> None:
    """Replace a reduction's two innermost loops, over lanes and products, by instructions.

    Parameters
    ----------
    init, block : SBlockRV
        Of a reduction that is decomposed.
    lanes : int
        Of the instructions.
    intrinsic : str
        Name of the tensor intrinsic.
    """
    sch.vectorize(sch.get_loops(init)[-1])
    lane = sch.get_loops(block)[-2]
    vectors, lane = sch.split(lane, factors=[None, lanes])
    sch.unroll(vectors)
    marks = sch.get(block).annotations
    if marks or constant(get_sblockrealize(sch, block).predicate) != 1:
        # The pixels of an incomplete tile: TVM takes no instruction for a block with a condition.
        around = sch.blockize(lane)
        for name, value in marks.items():
            sch.annotate(around, name, value)
        lane = sch.get_loops(block)[-2]
    sch.tensorize(lane, intrinsic)


def groups_tile(stmt: s_tir.SBlock, *, padded: bool) -> Tile:
    """The sizes of such a convolution, read off its block; a step is the products of a group."""
    n, o, y, x, v, co, ky, kx, step, _ = (constant(var.dom.extent) or 1 for var in stmt.iter_vars)
    image, filters = (region.source for region in stmt.reads)
    lines, columns = (constant(dim) or 1 for dim in image.shape[2:4])
    strides = (stride_of(lines, y, ky), stride_of(columns, x, kx))
    nbytes = image.dtype.bits // 8 * prod(constant(dim) or 1 for dim in image.shape[1:])
    return Tile(
        outer=n,
        blocks=o,
        lines=y,
        columns=x,
        steps=co * ky * kx * step,
        window=(ky, kx),
        strides=strides,
        image_bytes=touched(nbytes, (ky, kx), strides),
        filter_bytes=filters.dtype.bits // 8 * prod(constant(dim) or 1 for dim in filters.shape),
        lanes=v,
        padded=padded,
        element=1,
        pairs=constant(filters.shape[-1]) == CHANNELS,
    )
