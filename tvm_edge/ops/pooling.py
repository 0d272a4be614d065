"""Pools over windows; those with indices, and MaxUnpool, by converters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, num_outputs, operand, spread, text
from tvm_edge.ops.flops import Formula, Operation, elements, no_flops, per_element
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, register, relax_names
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape

__all__ = ["pool_flops"]

# Elements of a window: each is a tensor of its own until the comparisons are fused.
_MOST_TAPS = 256


def _max_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Return maxima with their places, which TVM's does not tell; without them take TVM's."""
    if num_outputs(attrs) == 1:
        return None
    x, shape = inputs[0], static_shape(inputs[0].ty)
    kernel = [int(length) for length in attrs["kernel_shape"]]
    if shape is None or int(np.prod(kernel)) > _MOST_TAPS:
        raise NotImplementedError(f"MaxPool with its output Indices, of a window of {kernel}")
    axes = _axes(shape, kernel, attrs)
    dtype = str(x.ty.dtype)
    least = -np.inf if "float" in dtype else np.iinfo(dtype).min
    best = index = None
    for taps in itertools.product(*map(range, kernel)):
        value, inside = x, np.ones([1] * len(shape), "bool")
        place = np.zeros([1] * len(shape), "int64")
        order = list(enumerate(axes))
        # Counted in rows, or in columns where storage_order asks for it.
        stride = 1
        for i, axis in order if attrs.get("storage_order", 0) else order[::-1]:
            positions = np.arange(axis.out) * axis.stride - axis.before + taps[i] * axis.dilation
            there = (positions >= 0) & (positions < axis.length)
            held = np.clip(positions, 0, axis.length - 1)
            value = bb.emit(relax.op.take(value, relax.const(held, "int64"), 2 + i, mode="clip"))
            inside = inside & spread(there, 2 + i, len(shape))
            place = place + spread(held * stride, 2 + i, len(shape))
            stride *= axis.length
        planes = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1])
        place = place + planes.reshape(*planes.shape, *[1] * len(axes)) * stride
        here = relax.const(np.asarray(place, "int64"), "int64")
        if not inside.all():
            lowest = relax.const(np.asarray(least, dtype), dtype)
            value = bb.emit(relax.op.where(relax.const(inside, "bool"), value, lowest))
        if best is None:
            best, index = value, here
            continue
        wins = bb.emit(relax.op.greater(value, best))
        best, index = (
            bb.emit(relax.op.where(wins, value, best)),
            bb.emit(relax.op.where(wins, here, index)),
        )
    return relax.Tuple([best, index])


class _Axis:
    """One spatial axis of a pool: length, where windows begin, how many there are."""

    def __init__(
        self,
        length: int,
        kernel: int,
        stride: int,
        dilation: int,
        pads: tuple[int, int],
        ceil: bool,
    ) -> None:
        self.length, self.stride, self.dilation, self.before = length, stride, dilation, pads[0]
        room = length + sum(pads) - dilation * (kernel - 1) - 1
        self.out = -(-room // stride) + 1 if ceil else room // stride + 1
        # A window that begins in the padding after the data is none.
        if ceil and (self.out - 1) * stride >= length + pads[0]:
            self.out -= 1


def _axes(shape: Sequence[int], kernel: Sequence[int], attrs: Attributes) -> list[_Axis]:
    rank = len(kernel)
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pads = list(attrs.get("pads", [0] * 2 * rank))
    auto = text(attrs, "auto_pad", "NOTSET")
    axes = []
    for i in range(rank):
        pair = (pads[i], pads[i + rank])
        if auto.startswith("SAME"):
            out = -(-shape[2 + i] // strides[i])
            total = (out - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - shape[2 + i]
            small = max(total, 0) // 2
            pair = (small, max(total, 0) - small)
            pair = pair if auto == "SAME_UPPER" else pair[::-1]
        elif auto == "VALID":
            pair = (0, 0)
        ceil = bool(attrs.get("ceil_mode", 0)) and not auto.startswith("SAME")
        axes.append(_Axis(shape[2 + i], kernel[i], strides[i], dilations[i], pair, ceil))
    return axes


def _max_unpool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Put elements where the pool took them from; an output shape pads the end.

    The indices count in the smallest tensor that the pool can have been of, whatever the shape
    asked for (ONNX's MaxUnpool).
    """
    x, shape = inputs[0], static_shape(inputs[0].ty)
    wanted = constant_of(operand(inputs, 2))
    if shape is None or (operand(inputs, 2) is not None and wanted is None):
        raise NotImplementedError("MaxUnpool to a shape known only at run time")
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides = attrs.get("strides", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    least = [
        (shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank] for i in range(rank)
    ]
    full = [*shape[:2], *least]
    dtype = str(x.ty.dtype)
    empty = relax.const(np.zeros(int(np.prod(full)), dtype), dtype)
    flat = bb.emit(
        relax.op.scatter_elements(
            empty,
            bb.emit(relax.op.reshape(inputs[1], (-1,))),
            bb.emit(relax.op.reshape(x, (-1,))),
            axis=0,
        )
    )
    result = bb.emit(relax.op.reshape(flat, full))
    if wanted is None:
        return result
    after = [int(w) - length for w, length in zip(wanted[-rank:], least, strict=True)]
    if min(after) < 0:
        raise ValueError(f"a MaxUnpool to {wanted.tolist()} has elements for {full}")
    widths = [0, 0, 0, 0, *(n for more in after for n in (0, more))]
    return bb.normalize(relax.op.nn.pad(result, widths))


def pool_flops(window: str) -> Formula:
    """Return a formula that finds the window's lengths in the attribute `window`."""

    def count(op: Operation) -> int:
        return elements(op.outputs[0]) * math.prod(int(n) for n in op.attributes[window])

    return count


register("AveragePool", "LpPool", flops=pool_flops("kernel_shape"))
register("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", flops=per_element(1))
register("MaxPool", convert=_max_pool, flops=pool_flops("kernel_shape"))
register("MaxUnpool", convert=_max_unpool, forming=(2,), flops=no_flops)

register(
    *relax_names(
        "nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d"
    ),
    gpu=PERFORMS,
    float16=FOLLOWS,
    flops=pool_flops("pool_size"),
)
register(*relax_names("nn.avg_pool2d nn.max_pool2d"), blocks="image")
register(
    *relax_names("nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d"),
    gpu=PERFORMS,
    float16=FOLLOWS,
    flops=per_element(1),
)
