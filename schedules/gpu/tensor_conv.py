"""Convolutions on channel blocks for tensor cores: the definition, and packed filters.

Images are NCHW8c of float16, NCHW16c of int8 or NCHW4c of float32 (tf32). A unit is the channels
of a block of a pixel, or of a filter at a tap; the reduction runs over taps, and over blocks within
a tap. Rows of the product are filters, columns are pixels.

A lane of a warp has the results of rows 8 apart. Filters therefore stand in stacks of 64, 32 or 16
so that these rows are neighbouring channels, which the lane stores as one vector.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import filled, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.knobs import CONFIG, knobs_as_text

__all__ = [
    "BLOCKS",
    "GEOMETRY",
    "TensorConv",
    "conv2d_tensor",
    "dense_tensor",
    "dense_workload",
    "pack_stacks",
    "position",
    "tensor_applies",
]

BLOCKS = {"float16": 8, "int8": 16, "float32": 4}
"""Channels in a block by the type of the image: 16 bytes of it."""

_MOST_TAPS = 32  # a bit each

GEOMETRY = "tvm_edge.tensor_conv"
"""Annotation of the block that reduces: its :class:`TensorConv` as text."""


@dataclass(frozen=True)
class TensorConv:
    """Convolution on tensor cores, as its kernel is made for it.

    Attributes
    ----------
    batch, blocks, height, width : int
        The image, ``[batch, blocks, height, width, lanes]``.
    filters : int
        Filled up to whole stacks.
    kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w : int
    lines, columns : int
        Of the result.
    stack : int
        Filters of a stack: 64, 32 or 16.
    lanes : int
        Channels of a block: 16 of int8, 8 of float16, 4 of float32.
    zero : int
        What an image of int8 is padded with.
    products : int
        Images that have filters of their own: those of a batch of products, of which each is one
        image (`batch` is 1). Otherwise 1.
    """

    batch: int
    blocks: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    dilation_h: int
    dilation_w: int
    lines: int
    columns: int
    stack: int
    lanes: int
    zero: int
    products: int = 1

    @staticmethod
    def of(workload: ConvWorkload, dtype: str, zero: int = 0, products: int = 1) -> TensorConv:
        """Return the geometry of a workload whose image is of `dtype`, or of each of `products`."""
        lines, columns = workload.output
        block = BLOCKS[dtype]
        stack = _stack(workload.filters)
        return TensorConv(
            workload.batch,
            filled(workload.channels, block) // block,
            workload.height,
            workload.width,
            filled(workload.filters, stack),
            *workload.kernel,
            *workload.strides,
            *workload.padding[:2],
            *workload.dilation,
            lines,
            columns,
            stack,
            block,
            zero,
            products,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Last arguments of the kernel's template: all that says where operands of a tile are."""
        return tuple(getattr(self, each.name) for each in fields(self)[:-4])

    @property
    def dtype(self) -> str:
        """Type of the image and the filters."""
        return next(dtype for dtype, lanes in BLOCKS.items() if lanes == self.lanes)

    @property
    def accumulator_dtype(self) -> str:
        """Type of the accumulators."""
        return "int32" if self.dtype == "int8" else "float32"

    @property
    def pixels(self) -> int:
        """Columns of a product."""
        return self.batch * self.lines * self.columns

    @property
    def taps(self) -> int:
        """Taps of the window."""
        return self.kernel_h * self.kernel_w

    @property
    def units(self) -> int:
        """Length of the reduction in units."""
        return self.blocks * self.taps


def _stack(filters: int) -> int:
    """Filters of a stack: as many as fill up no more than stacks of 32, or of 16 where few are."""
    least = 16 if filters <= 16 else 32
    return next(stack for stack in (64, 32, 16) if filled(filters, stack) == filled(filters, least))


def tensor_applies(workload: ConvWorkload) -> bool:
    """Return whether there is a kernel for a convolution."""
    small = max(workload.kernel) <= _MOST_TAPS
    return workload.groups == 1 and 0 not in workload.output and small


def pack_stacks(weights: np.ndarray, conv: TensorConv) -> np.ndarray:
    """Pack filters ``[O, C, KH, KW]`` as ``[KH, KW, C/b, O', b]``, see :func:`position`.

    Input channels are filled up with zeros, output channels with the last filter. Those of float32
    are rounded to tf32.
    """
    count, channels, kernel_h, kernel_w = weights.shape
    whole = np.zeros((conv.filters, conv.blocks * conv.lanes, kernel_h, kernel_w), conv.dtype)
    whole[:count, :channels] = weights
    whole[count:, :channels] = weights[-1:]
    if conv.dtype == "float32":
        whole = _rounded(whole)
    split = whole.reshape(-1, 8, conv.stack // 8, conv.blocks, conv.lanes, kernel_h, kernel_w)
    packed = split.transpose(5, 6, 3, 0, 2, 1, 4)
    return np.ascontiguousarray(
        packed.reshape(kernel_h, kernel_w, conv.blocks, conv.filters, conv.lanes)
    )


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round float32 to the 10 bits of mantissa of tf32, halves away from zero as CUDA's rna."""
    bits = values.view("uint32")
    finite = np.isfinite(values)
    return np.where(finite, (bits + 0x1000) & 0xFFFFE000, bits).astype("uint32").view("float32")


def position(channel: tirx.Expr, stack: int) -> tirx.Expr:
    """Return the place of an output channel among the packed filters."""
    own, beside = tirx.floormod(channel, stack), stack // 8
    first = tirx.floordiv(channel, stack) * stack
    return first + tirx.floormod(own, beside) * 8 + tirx.floordiv(own, beside)


def conv2d_tensor(
    image: te.Tensor, filters: te.Tensor, workload: ConvWorkload, knobs: str = "", zero: int = 0
) -> te.Tensor:
    """Compute a convolution of ``[N, C/b, H, W, b]`` to ``[N, O/b, OH, OW, b]``.

    The result is of the image's type; that of an image of int8 is of int32.

    Parameters
    ----------
    image : te.Tensor
    filters : te.Tensor
        As :func:`pack_stacks` returns them.
    workload : ConvWorkload
    knobs : str
        A :class:`~tvm_edge.schedules.gpu.tensor_tile.TensorTile`; empty: the schedule's choice.
    zero : int
        What an image of int8 is padded with.
    """
    conv = TensorConv.of(workload, str(image.dtype), zero)
    padded = pad_image(image, workload.padding, zero)
    ky = te.reduce_axis((0, conv.kernel_h), "ky")
    kx = te.reduce_axis((0, conv.kernel_w), "kx")
    co = te.reduce_axis((0, conv.blocks), "co")
    ci = te.reduce_axis((0, conv.lanes), "ci")
    attrs = {GEOMETRY: knobs_as_text(conv)}
    if knobs:
        attrs[CONFIG] = knobs

    def product(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = y * conv.stride_h + ky * conv.dilation_h
        column = x * conv.stride_w + kx * conv.dilation_w
        own = filters[ky, kx, co, position(o * conv.lanes + v, conv.stack), ci]
        pixel = padded[n, co, line, column, ci]
        return te.sum(_wide(pixel, conv) * _wide(own, conv), axis=[ky, kx, co, ci])

    blocks = filled(workload.filters, conv.lanes) // conv.lanes
    shape = (conv.batch, blocks, conv.lines, conv.columns, conv.lanes)
    return _stored(te.compute(shape, product, name="sums", attrs=attrs), conv)


def dense_workload(rows: int, reduction: int, columns: int) -> ConvWorkload:
    """Return a product with constant weights as a convolution of images of one pixel."""
    return ConvWorkload(rows, reduction, 1, 1, columns, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)


def dense_tensor(image: te.Tensor, filters: te.Tensor, columns: int) -> te.Tensor:
    """Compute a product of ``[M, K]`` with `columns` packed filters: ``[M, columns]``.

    Both lengths are of whole blocks: a row lies as the blocks of one pixel do.
    """
    rows, reduction = (int(d) for d in image.shape)
    conv = TensorConv.of(dense_workload(rows, reduction, columns), str(image.dtype))
    co, ci = te.reduce_axis((0, conv.blocks), "co"), te.reduce_axis((0, conv.lanes), "ci")

    def product(m: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
        own = filters[0, 0, co, position(n, conv.stack), ci]
        pixel = image[m, co * conv.lanes + ci]
        return te.sum(_wide(pixel, conv) * _wide(own, conv), axis=[co, ci])

    attrs = {GEOMETRY: knobs_as_text(conv)}
    return _stored(te.compute((rows, columns), product, name="sums", attrs=attrs), conv)


def _wide(value: tirx.Expr, conv: TensorConv) -> tirx.Expr:
    dtype = conv.accumulator_dtype
    return value if conv.dtype == dtype else tirx.Cast(dtype, value)


def _stored(accumulators: te.Tensor, conv: TensorConv) -> te.Tensor:
    """Return the result: accumulators, but of float16 they are rounded."""
    if conv.dtype != "float16":
        return accumulators
    return stored(list(accumulators.shape), lambda *i: accumulators(*i))
