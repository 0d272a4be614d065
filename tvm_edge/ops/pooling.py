"""Pools over windows; those with indices, and MaxUnpool, by converters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, num_outputs, operand, spread, text
from tvm_edge.ops.elements import ensure, plain
from tvm_edge.ops.flops import Formula, Operation, elements, no_flops, per_element
from tvm_edge.ops.movement.run_time_pads import pad_by
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, register, relax_names
from tvm_edge.ops.same_padding import SamePads, padded_image, same_pads
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of, static_shape

__all__ = ["pool_flops"]

# Elements of a window: each is a tensor of its own until the comparisons are fused.
_MOST_TAPS = 256


def _max_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Return maxima with their places, which TVM's does not tell; without them take TVM's."""
    x, shape = inputs[0], static_shape(inputs[0].ty)
    kernel = [int(length) for length in attrs["kernel_shape"]]
    if num_outputs(attrs) == 1:
        pads = same_pads(x, kernel, attrs)
        if pads is None and (shape is not None or not _rounds_up_inside(kernel, attrs)):
            return None
        return _max_pool_of_open_lengths(bb, x, pads, attrs)
    if int(np.prod(kernel)) > _MOST_TAPS:
        raise NotImplementedError(f"MaxPool with its output Indices, of a window of {kernel}")
    if shape is None:
        return _max_pool_with_places(bb, x, kernel, attrs)
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


def _pads(kernel: Sequence[int], attrs: Attributes) -> tuple[list[int], list[int]]:
    """Return the pads before and after each spatial axis that the node states."""
    pads = [int(n) for n in attrs.get("pads", [0] * (2 * len(kernel)))]
    return pads[: len(kernel)], pads[len(kernel) :]


def _rounds_up_inside(kernel: Sequence[int], attrs: Attributes) -> bool:
    """Return whether ``ceil_mode`` is set, and each window begins before the end of the data."""
    if not attrs.get("ceil_mode", 0) or text(attrs, "auto_pad", "NOTSET") != "NOTSET":
        return False
    ones = [1] * len(kernel)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    _, after = _pads(kernel, attrs)
    axes = zip(kernel, strides, dilations, after, strict=True)
    return all(end + stride <= (k - 1) * dilation + 1 for k, stride, dilation, end in axes)


def _max_pool_of_open_lengths(
    bb: relax.BlockBuilder, x: relax.Expr, pads: SamePads | None, attrs: Attributes
) -> relax.Var:
    """Return maxima; `pads` are those of ``auto_pad``."""
    from tvm.relax.frontend.onnx.onnx_frontend import MaxPool as TvmMaxPool

    explicit = dict(attrs)
    kernel = [int(length) for length in attrs["kernel_shape"]]
    if pads is None and _rounds_up_inside(kernel, attrs):
        # So many windows, as a quotient: TVM's number has a condition, which its passes do not take
        # as a length. The pads hold the least value.
        strides = attrs.get("strides", [1] * len(kernel))
        before, after = _pads(kernel, attrs)
        explicit["ceil_mode"] = 0
        explicit["pads"] = [*before, *(n + s - 1 for n, s in zip(after, strides, strict=True))]
    if pads is not None:
        explicit.pop("auto_pad")
        explicit["pads"] = pads.numbers or (0,) * (2 * len(pads.before))
        x = x if pads.numbers else padded_image(bb, x, pads, lowest=True)
    return bb.emit(TvmMaxPool._impl_v1(bb, [x], explicit, None))


def _max_pool_with_places(
    bb: relax.BlockBuilder, x: relax.Expr, kernel: Sequence[int], attrs: Attributes
) -> relax.Tuple:
    """Return maxima of an image of open lengths, and the place of the first one of each window."""
    pads = same_pads(x, kernel, attrs)
    best = _max_pool_of_open_lengths(bb, x, pads, attrs)
    rank = len(kernel)
    fronts = attrs.get("pads", [0] * rank) if pads is None else pads.before
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    in_columns = bool(attrs.get("storage_order", 0))

    def places(data: te.Tensor, largest: te.Tensor, before: Sequence[Any]) -> te.Tensor:
        lengths = list(data.shape[2:])

        def element(n: Any, c: Any, *at: Any) -> Any:
            found: Any = tirx.IntImm("int64", 0)
            for taps in reversed(list(itertools.product(*map(range, kernel)))):
                position = [
                    at[i] * strides[i] + taps[i] * dilations[i] - before[i] for i in range(rank)
                ]
                axes = list(zip(position, lengths, strict=True))
                inside = tirx.all(*(tirx.all(p >= 0, p < length) for p, length in axes))
                place = n * data.shape[1] + c
                for p, length in reversed(axes) if in_columns else axes:
                    place = place * length + p
                is_best = tirx.EQ(data(n, c, *position), largest(n, c, *at))
                is_best = tirx.if_then_else(inside, is_best, tirx.const(False, "bool"))
                found = tirx.Select(is_best, place, found)
            return found

        return te.compute(largest.shape, element, name="places")

    before = [n if isinstance(n, tirx.Expr) else tirx.IntImm("int64", int(n)) for n in fronts]
    index = bb.emit_te(places, x, best, before[:rank], primfunc_name_hint="max_pool_places")
    return relax.Tuple([best, index])


def _average_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Write out the pads of ``auto_pad`` for open lengths; they do not count, or count as zeros."""
    kernel = [int(length) for length in attrs["kernel_shape"]]
    pads = same_pads(inputs[0], kernel, attrs)
    if pads is None:
        return None
    from tvm.relax.frontend.onnx.onnx_frontend import AveragePool as TvmAveragePool

    explicit = {k: v for k, v in attrs.items() if k != "auto_pad"}
    if pads.numbers:
        explicit["pads"] = pads.numbers
        return TvmAveragePool._impl_v1(bb, inputs, explicit, None)
    whole = bb.emit(
        TvmAveragePool._impl_v1(bb, [padded_image(bb, inputs[0], pads)], explicit, None)
    )
    if attrs.get("count_include_pad", 0):
        return whole
    ones = [1] * len(kernel)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)

    def weighted(mean: te.Tensor, data: te.Tensor, before: Sequence[Any]) -> te.Tensor:
        def element(n: Any, c: Any, *at: Any) -> Any:
            counted: Any = tirx.IntImm("int64", 1)
            for i, k in enumerate(kernel):
                taps = [at[i] * strides[i] + tap * dilations[i] - before[i] for tap in range(k)]
                inside = [tirx.all(tap >= 0, tap < data.shape[2 + i]) for tap in taps]
                counted *= sum(one.astype("int64") for one in inside)
            return mean(n, c, *at) * (math.prod(kernel) / counted.astype(mean.dtype))

        return te.compute(mean.shape, element, name="mean")

    before = [n if isinstance(n, tirx.Expr) else tirx.IntImm("int64", n) for n in pads.before]
    return bb.emit_te(weighted, whole, inputs[0], before, primfunc_name_hint="mean_of_inside")


def _lp_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Write out the pads of ``auto_pad`` for open lengths."""
    pads = same_pads(inputs[0], attrs["kernel_shape"], attrs)
    if pads is None:
        return None
    from tvm.relax.frontend.onnx.onnx_frontend import LpPool as TvmLpPool

    explicit = {k: v for k, v in attrs.items() if k != "auto_pad"}
    explicit["pads"] = pads.numbers or (0,) * (2 * len(pads.before))
    x = inputs[0] if pads.numbers else padded_image(bb, inputs[0], pads)
    return TvmLpPool._impl_v1(bb, [x], explicit, None)


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
    x, shape = inputs[0], lengths_of(inputs[0].ty)
    wanted = constant_of(operand(inputs, 2))
    if shape is None or (operand(inputs, 2) is not None and wanted is None):
        raise NotImplementedError("MaxUnpool to a shape that kernels calculate")
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides = attrs.get("strides", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    least = [
        plain((shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank])
        for i in range(rank)
    ]
    full = [*shape[:2], *least]
    dtype = str(x.ty.dtype)
    total = plain(reduce(mul, full))
    if isinstance(total, int):
        empty = relax.const(np.zeros(total, dtype), dtype)
    else:
        empty = bb.emit(relax.op.zeros((total,), dtype))
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
    after = [plain(int(w) - length) for w, length in zip(wanted[-rank:], least, strict=True)]
    if any(isinstance(more, tirx.Expr) for more in after):
        ensure(bb, tirx.all(*(more >= 0 for more in after if isinstance(more, tirx.Expr))))
        return pad_by(bb, result, [0] * (2 + rank), [0, 0, *after])
    if min(after) < 0:
        raise ValueError(f"a MaxUnpool to {wanted.tolist()} has elements for {full}")
    widths = [0, 0, 0, 0, *(n for more in after for n in (0, more))]
    return bb.normalize(relax.op.nn.pad(result, widths))


def pool_flops(window: str) -> Formula:
    """Return a formula that finds the window's lengths in the attribute `window`."""

    def count(op: Operation) -> int:
        return elements(op.outputs[0]) * math.prod(int(n) for n in op.attributes[window])

    return count


register("AveragePool", convert=_average_pool, flops=pool_flops("kernel_shape"))
register("LpPool", convert=_lp_pool, flops=pool_flops("kernel_shape"))
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
