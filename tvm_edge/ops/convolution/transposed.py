"""Converter of ConvTranspose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, operand
from tvm_edge.ops.elements import plain
from tvm_edge.ops.movement.run_time_pads import pad_by
from tvm_edge.ops.quantization.constants import stored_constant
from tvm_edge.ops.quantization.linear import DEQUANTIZE
from tvm_edge.relay_passes.ir.expressions import (
    const,
    constant_of,
    is_call,
    lengths_of,
    same_length,
    static_shape,
    typical_shape,
)
from tvm_edge.schedules.transposed import TransposedConv, phase_filters

__all__ = ["conv_transpose"]

_LEAST = 16
"""Channels that fill a block on every CPU: kernels of open images take blocks."""

_FEW = 5
"""Filters that do not fill half a block of eight."""


def conv_transpose(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Turn ``output_shape``, which TVM ignores, into pads, and bound ``output_padding``.

    ONNX wants the latter below the dilation or the stride, TVM below the stride. ONNX Runtime
    computes only that as well.
    """
    rank = int(inputs[0].ty.ndim) - 2
    if _is_enlarging(inputs, attrs, rank):
        return _as_pixels(bb, inputs)
    if "output_shape" in attrs:
        if static_shape(inputs[0].ty) is None:
            return _to_shape(bb, inputs, attrs, rank)
        attrs = _with_pads(inputs, attrs, rank)
    strides = list(attrs.get("strides", [1] * rank))
    extra = list(attrs.get("output_padding", [0] * rank))
    if all(more < stride for more, stride in zip(extra, strides, strict=True)):
        few = _few_filters(bb, inputs, attrs)
        if few is not None:
            return few
        return _converted(bb, inputs, attrs) if "output_shape" in attrs else None
    # No product reaches the end of a longer result: zeros, or elements that were cut off.
    after = list(attrs.get("pads") or _pads(inputs, attrs, rank))
    zeros = [0] * rank
    for i, stride in enumerate(strides):
        beyond = max(extra[i] - (stride - 1), 0)
        extra[i] -= beyond
        kept = min(after[rank + i], beyond)
        after[rank + i] -= kept
        zeros[i] = beyond - kept
    bounded = {**attrs, "pads": tuple(after), "output_padding": extra, "auto_pad": b"NOTSET"}
    result = bb.normalize(_converted(bb, [*inputs[:2], None], bounded))
    if any(zeros):
        widths = [0] * 4 + [width for zero in zeros for width in (0, zero)]
        result = bb.normalize(relax.op.nn.pad(result, widths))
    bias = operand(inputs, 2)
    if bias is None:
        return result
    return relax.op.add(result, relax.op.reshape(bias, [1, -1] + [1] * rank))


def _is_enlarging(inputs: Sequence[relax.Expr], attrs: Attributes, rank: int) -> bool:
    """Return whether each pixel of an image of open lengths becomes pixels of its own."""
    weight = static_shape(inputs[1].ty)
    if weight is None or rank != 2 or static_shape(inputs[0].ty) is not None:
        return False
    return (
        list(attrs.get("strides", [1] * rank)) == list(weight[2:])
        and attrs.get("group", 1) == 1
        and not any(attrs.get("pads", []))
        and not any(attrs.get("output_padding", []))
        and all(dilation == 1 for dilation in attrs.get("dilations", []))
        and "output_shape" not in attrs
    )


def _as_pixels(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr]) -> relax.Expr:
    """Convolve each pixel by itself, with a channel for each of those it becomes."""
    _, channels, high, wide = static_shape(inputs[1].ty) or ()
    filters = bb.normalize(relax.op.permute_dims(inputs[1], [1, 2, 3, 0]))
    filters = bb.normalize(relax.op.reshape(filters, [channels * high * wide, -1, 1, 1]))
    few = max(_LEAST - channels * high * wide, 0)
    if few:
        filters = bb.normalize(relax.op.nn.pad(filters, [0, few, *[0] * 6]))
    made = bb.normalize(relax.op.nn.conv2d(inputs[0], filters))
    if few:
        made = bb.normalize(relax.op.strided_slice(made, [1], [0], [channels * high * wide]))
    bias = operand(inputs, 2)
    if bias is not None:
        each = bb.normalize(relax.op.repeat(bias, high * wide, axis=0))
        made = bb.normalize(relax.op.add(made, relax.op.reshape(each, [1, -1, 1, 1])))
    images, _, lines, columns = lengths_of(made.ty) or ()
    apart = [images, channels, high, wide, lines, columns]
    made = bb.normalize(relax.op.reshape(made, apart))
    made = bb.normalize(relax.op.permute_dims(made, [0, 1, 4, 2, 5, 3]))
    return relax.op.reshape(made, [images, channels, lines * high, columns * wide])


def _few_filters(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convolve with a filter for each phase of the output, where filters alone fill no vectors.

    ``None`` for others. A window has the taps of all phases, zeros where one has none.
    """
    weights, shape = _known(bb, inputs[1]), typical_shape(inputs[0].ty)
    if weights is None or shape is None or len(shape) != 4 or not 0 < weights.shape[1] <= _FEW:
        return None
    if attrs.get("group", 1) != 1 or any(d != 1 for d in attrs.get("dilations", [])):
        return None
    sizes = [attrs.get(k, v) for k, v in (("strides", (1, 1)), ("output_padding", (0, 0)))]
    pads = tuple(attrs.get("pads") or _pads(inputs, attrs, 2))
    conv = TransposedConv.of(
        shape, weights.shape[1], weights.shape[2:], tuple(sizes[0]), pads, tuple(sizes[1])
    )
    if conv is None or (conv.lines.stride == 1 == conv.columns.stride):
        return None
    axes, size = (conv.lines, conv.columns), (lengths_of(inputs[0].ty) or ())[2:]
    kept = [axis.outputs(n) for axis, n in zip(axes, size, strict=True)]
    whole = [axis.positions(n) * axis.stride for axis, n in zip(axes, size, strict=True)]
    cut = not all(same_length(a, b) for a, b in zip(kept, whole, strict=True))
    if cut and static_shape(inputs[0].ty) is None:
        return None  # TVM does not crop open lengths
    filters = const(phase_filters(weights, conv), str(weights.dtype))
    made = bb.normalize(relax.op.nn.conv2d(inputs[0], filters, padding=conv.workload.padding))
    images, wide, lines, columns = lengths_of(made.ty) or ()
    bias = operand(inputs, 2)
    if bias is not None:  # before the pixels move: the convolution's epilogue
        each = bb.normalize(relax.op.tile(bias, [wide // weights.shape[1]]))
        made = bb.normalize(relax.op.add(made, relax.op.reshape(each, [1, -1, 1, 1])))
    apart = [images, *(axis.stride for axis in axes), weights.shape[1], lines, columns]
    made = bb.normalize(relax.op.reshape(made, apart))
    made = bb.normalize(relax.op.permute_dims(made, [0, 3, 4, 1, 5, 2]))
    made = bb.normalize(relax.op.reshape(made, [images, weights.shape[1], *whole]))
    return relax.op.strided_slice(made, [2, 3], [0, 0], kept) if cut else made


def _known(bb: relax.BlockBuilder, weights: relax.Expr) -> np.ndarray | None:
    """Return weights that are constant, those of a quantised model as real numbers."""
    call = bb.lookup_binding(weights) if isinstance(weights, relax.Var) else None
    if not is_call(call, DEQUANTIZE):
        return constant_of(weights)
    found = stored_constant(call)
    return None if found is None else found.real


def _converted(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr | None], attrs: Attributes
) -> relax.Expr:
    from tvm.relax.frontend.onnx.onnx_frontend import ConvTranspose as TvmConvTranspose

    known = {k: v for k, v in attrs.items() if k != "output_shape"}
    return TvmConvTranspose._impl_v1(bb, inputs, known, None)


def _pads(inputs: Sequence[relax.Expr], attrs: Attributes, rank: int) -> list[int]:
    """Pads of ``auto_pad``, for results of the length of the image times the stride."""
    kind = attrs.get("auto_pad", b"NOTSET")
    if kind not in (b"SAME_UPPER", b"SAME_LOWER"):
        return [0] * (2 * rank)
    weight = static_shape(inputs[1].ty)
    if weight is None:
        raise NotImplementedError("ConvTranspose with auto_pad and weights of dynamic dimensions")
    before, after = [], []
    for i in range(rank):
        window = (weight[2 + i] - 1) * attrs.get("dilations", [1] * rank)[i] + 1
        more = attrs.get("output_padding", [0] * rank)[i]
        total = max(window + more - attrs.get("strides", [1] * rank)[i], 0)
        before.append(total // 2 if kind == b"SAME_UPPER" else total - total // 2)
        after.append(total - before[-1])
    return [*before, *after]


def _to_shape(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes, rank: int
) -> relax.Expr:
    """Crop the whole result of an image of open lengths to ``output_shape``, or add zeros."""
    bare = {k: v for k, v in attrs.items() if k not in ("pads", "auto_pad")}
    whole = bb.emit(_converted(bb, [*inputs[:2], None], bare))
    upper = attrs.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
    wanted = [int(length) for length in attrs["output_shape"]][-rank:]
    before, after = [], []
    for length, want in zip((lengths_of(whole.ty) or ())[2:], wanted, strict=True):
        more = want - length
        if isinstance(more, int):
            cropped = min(more, 0)
            small, large = -(-cropped // 2), cropped // 2
        else:
            cropped = tirx.min(more, tirx.IntImm("int64", 0))
            large = tirx.floordiv(cropped, 2)
            small = cropped - large
        front = small if upper else large
        before.append(plain(front))
        after.append(plain(more - front))
    result = pad_by(bb, whole, [0, 0, *before], [0, 0, *after])
    bias = operand(inputs, 2)
    if bias is None:
        return result
    return relax.op.add(result, relax.op.reshape(bias, [1, -1] + [1] * rank))


def _with_pads(inputs: Sequence[relax.Expr], attrs: Attributes, rank: int) -> Attributes:
    """Return the attributes with the pads that ``output_shape`` stands for."""
    shape, weight = static_shape(inputs[0].ty), static_shape(inputs[1].ty)
    if shape is None or weight is None:
        raise NotImplementedError("ConvTranspose with output_shape and dynamic dimensions")
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    extra = list(attrs.get("output_padding", [0] * rank))
    wanted = [int(length) for length in attrs["output_shape"]][-rank:]
    before, after = [], []
    for i in range(rank):
        full = strides[i] * (shape[2 + i] - 1) + extra[i] + (weight[2 + i] - 1) * dilations[i] + 1
        total = full - wanted[i]
        if total < 0:  # more than the result: it ends in what only the bias reaches
            extra[i], total = extra[i] - total, 0
        small = total // 2
        upper = attrs.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
        before.append(small if upper else total - small)
        after.append(total - before[-1])
    padded = {k: v for k, v in attrs.items() if k != "auto_pad"}
    return {**padded, "pads": (*before, *after), "output_padding": extra}
