"""Converter of ConvTranspose."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__ = ["conv_transpose"]


def conv_transpose(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Turn ``output_shape``, which TVM ignores, into pads."""
    shape, weight = static_shape(inputs[0].ty), static_shape(inputs[1].ty)
    if "output_shape" not in attrs:
        return None
    if shape is None or weight is None:
        raise NotImplementedError("ConvTranspose with output_shape and dynamic dimensions")
    rank = len(shape) - 2
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
    pads = {"pads": (*before, *after), "output_padding": extra}
    padded = {k: v for k, v in attrs.items() if k not in ("auto_pad", "output_shape")}
    from tvm.relax.frontend.onnx.onnx_frontend import ConvTranspose as TvmConvTranspose

    return TvmConvTranspose._impl_v1(bb, inputs, {**padded, **pads}, None)
