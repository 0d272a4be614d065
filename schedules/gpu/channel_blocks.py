"""Convolutions in channel blocks on a GPU: NCHW4c and NCHW8c.

Results are indexed by output channel, line and column, as in NCHW. The layout only decides where
an image has its channels, and where the epilogue stores them. So the kernels are those of
:mod:`.tiled_blocks` through local memory and of :mod:`.item_blocks` without it. Channel blocks
gain vectors: four channels of a pixel are one read or one store, whatever the stride and the
image width. A condition for padding is one for all four.

All pixels share the filters. They are packed at compile time, output channels side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import s_tir, sym, te, tirx
from tvm.s_tir.dlight.analysis.gemv import get_reduction_expr
from tvm.s_tir.schedule import SBlockRV, Schedule

from tvm_edge.schedules.accesses import accesses, constant, nodes_in
from tvm_edge.schedules.analysis import accepts, is_plain, root_blocks
from tvm_edge.schedules.blocked import filled, input_block, pad_image
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.schedules.stages import isolate, open_reduction

__all__ = [
    "SIZES",
    "BlockedReduction",
    "block_of",
    "conv2d_in_blocks",
    "image_block",
    "pack_rows",
    "tensors_in_blocks",
]

SIZES = (VECTOR, 2 * VECTOR)
"""Channels in a block: one vector, or the two that make up a sector of NVIDIA's caches."""

_BLOCKS = "tvm_edge.channel_blocks"
"""Annotation of the block that reduces: its :class:`_Blocks` as text."""

# Limit of the unrolled steps of a window, channels of a block included.
_MOST_WRITTEN_OUT = 49


@dataclass(frozen=True)
class _Blocks:
    """Block size of the result, and strides: what the reduction itself does not show."""

    block: int
    lines: int
    columns: int


def image_block(workload: ConvWorkload, block: int) -> int:
    """Return the channel block of the image that a convolution reads; 0 if there is no kernel.

    As on CPUs, but for grouped convolutions, which stay NCHW.
    """
    if workload.groups > 1 and not workload.depthwise:
        return 0
    return input_block(workload, block)


def pack_rows(weights: np.ndarray, workload: ConvWorkload, block: int) -> np.ndarray:
    """Pack filters ``[O, C/groups, KH, KW]`` with output channels side by side.

    Parameters
    ----------
    weights : np.ndarray
    workload : ConvWorkload
    block : int
        Channels in a block of the result.

    Returns
    -------
    np.ndarray
        ``[C/d, KH, KW, d, O']``, of a depthwise convolution ``[KH, KW, O']``. Input channels are
        filled up with zeros, and output channels with the last filter, as in
        :func:`~tvm_edge.schedules.blocked.pack_filters`.
    """
    rows = filled(workload.filters, block)
    whole = np.concatenate([weights, np.repeat(weights[-1:], rows - len(weights), axis=0)])
    if workload.depthwise:
        return np.ascontiguousarray(whole[:, 0].transpose(1, 2, 0))
    depth = image_block(workload, block)
    missing = filled(workload.channels, depth) - workload.channels
    whole = np.pad(whole, [(0, 0), (0, missing), (0, 0), (0, 0)])
    split = whole.reshape(rows, -1, depth, *workload.kernel)
    return np.ascontiguousarray(split.transpose(1, 3, 4, 2, 0))


def conv2d_in_blocks(
    image: te.Tensor,
    filters: te.Tensor,
    workload: ConvWorkload,
    block: int,
    knobs: tuple[str, str] | None = None,
) -> te.Tensor:
    """Compute a convolution of ``[N, C/d, H, W, d]`` to ``[N, O/block, OH, OW, block]``.

    Parameters
    ----------
    image : te.Tensor
    filters : te.Tensor
        As :func:`pack_rows` returns them.
    workload : ConvWorkload
    block : int
    knobs : (str, str), optional
        An annotation and its text, for the rule that schedules the kernel.
    """
    depth, rows = int(image.shape[-1]), int(filters.shape[-1])
    padded = pad_image(image, workload.padding)
    ky = te.reduce_axis((0, workload.kernel[0]), "ky")
    kx = te.reduce_axis((0, workload.kernel[1]), "kx")
    (line_stride, column_stride), (line_step, tap_step) = workload.strides, workload.dilation

    def line(y: tirx.Expr) -> tirx.Expr:
        return y * line_stride + ky * line_step

    def column(x: tirx.Expr) -> tirx.Expr:
        return x * column_stride + kx * tap_step

    attrs = {_BLOCKS: knobs_as_text(_Blocks(block, *workload.strides))}
    if knobs is not None:
        attrs[knobs[0]] = knobs[1]
    shape = (workload.batch, rows, *workload.output)
    if workload.depthwise:
        accumulators = te.compute(
            shape,
            lambda n, o, y, x: te.sum(
                padded[n, tirx.floordiv(o, depth), line(y), column(x), tirx.floormod(o, depth)]
                * filters[ky, kx, o],
                axis=[ky, kx],
            ),
            name="sums",
            attrs=attrs,
        )
    else:
        co = te.reduce_axis((0, int(image.shape[1])), "co")
        ci = te.reduce_axis((0, depth), "ci")
        accumulators = te.compute(
            shape,
            lambda n, o, y, x: te.sum(
                padded[n, co, line(y), column(x), ci] * filters[co, ky, kx, ci, o],
                axis=[co, ky, kx, ci],
            ),
            name="sums",
            attrs=attrs,
        )
    return te.compute(
        (workload.batch, rows // block, *workload.output, block),
        lambda n, o, y, x, v: accumulators[n, o * block + v, y, x],
        name="in_blocks",
    )


def tensors_in_blocks(workload: ConvWorkload, block: int) -> list[te.Tensor]:
    """Return image, filters and result of a convolution in channel blocks."""
    depth = image_block(workload, block)
    blocks = filled(workload.channels, depth) // depth
    shape = (workload.batch, blocks, workload.height, workload.width, depth)
    image = te.placeholder(shape, "float32", "image")
    rows = filled(workload.filters, block)
    own = workload.kernel if workload.depthwise else (blocks, *workload.kernel, depth)
    filters = te.placeholder((*own, rows), "float32", "filters")
    return [image, filters, conv2d_in_blocks(image, filters, workload, block)]


def block_of(func: tirx.PrimFunc) -> int:
    """Return the channel block of a convolution kernel, whoever schedules it; 0 if none."""
    texts = [block.annotations.get(_BLOCKS) for block in nodes_in(func.body, s_tir.SBlock)]
    return next((read_knobs(_Blocks, str(text)).block for text in texts if text), 0)


@dataclass(frozen=True)
class BlockedReduction:
    """Convolution in channel blocks, analyzed, with its epilogue.

    Attributes
    ----------
    func : PrimFunc
        With two blocks: padding is a condition on loads.
    reduction, epilogue : SBlock
    conv : Contraction
        Over results by image, channel, line and column.
    block : int
        Channels in a block of the result.
    """

    func: tirx.PrimFunc
    reduction: s_tir.SBlock
    epilogue: s_tir.SBlock
    conv: Contraction
    block: int

    @staticmethod
    def of(func: tirx.PrimFunc) -> BlockedReduction | None:
        """Analyze `func`; return ``None`` if it is something else."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        text = sch.get(block).annotations.get(_BLOCKS)
        if not text:
            return None
        blocks = read_knobs(_Blocks, str(text))
        conv = _contraction(sch.get(block), blocks)
        padding = isolate(sch, block, conv.data.source)
        if padding is not None and not accepts(sch.compute_inline, padding):
            return None
        after = _epilogue(sch, block, blocks.block)
        if after is None or len(root_blocks(sch)) != 2:
            return None
        made = sch.mod["main"]
        if not after.writes[0].source.same_as(made.params[-1]):
            return None
        if str(sch.get(block).iter_vars[0].var.ty.dtype) != "int32":
            return None  # too large for indices of 32 bits
        return BlockedReduction(made, sch.get(block), after, conv, blocks.block)

    @property
    def is_depthwise(self) -> bool:
        """Return whether each output channel reads an input channel of its own."""
        return not self.conv.channel_sum

    @property
    def for_items(self) -> bool:
        """Return whether it was given knobs of the kernels without local memory."""
        return ITEMS in self.reduction.annotations


def _contraction(block: s_tir.SBlock, blocks: _Blocks) -> Contraction:
    """Classify the axes of the reduction, whose order :func:`conv2d_in_blocks` decides."""
    term = get_reduction_expr(block)
    sizes = [constant(var.dom.extent) or 1 for var in block.iter_vars]
    reduction = tuple(range(4, len(sizes)))
    window: tuple[int, ...] = reduction
    if len(reduction) > 2:
        _, ky, kx, ci = reduction
        whole = sizes[ky] * sizes[kx] * sizes[ci] <= _MOST_WRITTEN_OUT
        window = (ky, kx, ci) if whole else (kx, ci)
    return Contraction(
        data=term.a,
        weight=term.b,
        columns=3,
        lines=2,
        channels=1,
        outer=(0,),
        reduction=reduction,
        group=sizes[1],
        strides=(blocks.lines, blocks.columns),
        window=window,
    )


def _epilogue(sch: Schedule, block: SBlockRV, width: int) -> s_tir.SBlock | None:
    """Return the epilogue, if it reads each result once and stores it into its place in a block."""
    accumulators = sch.get(block).writes[0].source
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_plain(sch, consumers[0]):
        return None
    stmt = sch.get(consumers[0])
    if not isinstance(stmt.body, tirx.BufferStore) or len(stmt.writes) != 1:
        return None
    if any(v.iter_type != tirx.IterVar.DataPar for v in stmt.iter_vars) or len(stmt.iter_vars) != 5:
        return None
    n, o, y, x, v = (var.var for var in stmt.iter_vars)
    places = (n, o * width + v, y, x)
    simplify = sym.Analyzer()
    for var in stmt.iter_vars:
        simplify.bind(var.var, var.dom)
    for access in accesses(stmt)[0]:
        if not access.buffer.same_as(accumulators):
            continue
        apart = (a - b for a, b in zip(access.indices, places, strict=True))
        if any(constant(simplify.simplify(each)) != 0 for each in apart):
            return None
    return stmt
