"""Dense and grouped convolutions of blocked 8-bit images: register tiles, four products at a time.

The tiles and tasks are those of :mod:`tvm_edge.schedules.cpu.blocked`: where that multiplies a
vector of filters by a pixel's channel, this takes four channels.
"""

from __future__ import annotations

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
from tvm_edge.schedules.cpu.blocked_knobs import Tile, stride_of, touched
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.int8 import CONV2D_INT8

__all__ = ["Conv2dInt8", "by_dot_products", "int8_tile"]


class Conv2dInt8(ScheduleRule):
    """Convolutions of :func:`tvm_edge.schedules.int8.conv2d_int8`."""

    name = "conv2d_int8"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Schedule `func` if its one reduction is such a convolution."""
        dot = DOT_PRODUCTS.get(spec.dot_product)
        conv = open_conv(func, CONV2D_INT8) if dot is not None else None
        if conv is None or dot is None:
            return None
        size = int8_tile(conv.sch.get(conv.block), padded=conv.stage is not None)
        init, done = conv.begun(conv.knobs(size, spec), spec, 1, vectorize=False)
        schedule_rest(conv.sch, done, spec)
        return by_dot_products(
            conv.sch, init, conv.block, conv.epilogue, dot.lanes, dot.broadcast()
        )


def by_dot_products(
    sch: Schedule,
    init: SBlockRV,
    block: SBlockRV,
    epilogue: SBlockRV,
    lanes: int,
    intrinsic: str,
) -> tirx.PrimFunc:
    """Replace a reduction's two innermost loops, over lanes and products, by instructions.

    Parameters
    ----------
    init, block, epilogue : SBlockRV
        Of a reduction that is decomposed, and its epilogue.
    lanes : int
        Of the instructions.
    intrinsic : str
        Name of the tensor intrinsic.
    """
    sch.vectorize(sch.get_loops(init)[-1])
    lane = sch.get_loops(block)[-2]
    vectors, lane = sch.split(lane, factors=[None, lanes])
    sch.unroll(vectors)
    if constant(get_sblockrealize(sch, block).predicate) != 1:
        # The pixels of an incomplete tile: TVM takes no instruction for a block with a condition.
        sch.blockize(lane)
        lane = sch.get_loops(block)[-2]
    names = sch.get(init).name_hint, sch.get(epilogue).name_hint
    sch.tensorize(lane, intrinsic)
    return begin_with_bias(sch.mod["main"], *names)


def int8_tile(stmt: s_tir.SBlock, *, padded: bool) -> Tile:
    """The sizes of such a convolution, read off its block; a step is four products."""
    n, o, y, x, v, co, ky, kx, step, _ = (constant(var.dom.extent) or 1 for var in stmt.iter_vars)
    image, filters = (region.source for region in stmt.reads)
    lines, columns = (constant(dim) or 1 for dim in image.shape[2:4])
    strides = (stride_of(lines, y, ky), stride_of(columns, x, kx))
    nbytes = prod(constant(dim) or 1 for dim in image.shape[1:])
    return Tile(
        outer=n,
        blocks=o,
        lines=y,
        columns=x,
        steps=co * ky * kx * step,
        window=(ky, kx),
        strides=strides,
        image_bytes=touched(nbytes, (ky, kx), strides),
        filter_bytes=prod(constant(dim) or 1 for dim in filters.shape),
        lanes=v,
        padded=padded,
        element=1,
    )
