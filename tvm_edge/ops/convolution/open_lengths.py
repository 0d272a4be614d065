"""Converter of Conv, of images whose lengths only the run tells."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.same_padding import padded_image, same_pads
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__ = ["conv"]


def conv(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Write out the pads of ``auto_pad`` for open lengths; leave all else to TVM."""
    weight = static_shape(inputs[1].ty)
    pads = None if weight is None else same_pads(inputs[0], weight[2:], attrs)
    if pads is None:
        return None
    from tvm.relax.frontend.onnx.onnx_frontend import Conv as TvmConv

    image = inputs[0] if pads.numbers is not None else padded_image(bb, inputs[0], pads)
    explicit = {k: v for k, v in attrs.items() if k != "auto_pad"}
    explicit["pads"] = pads.numbers or [0] * (2 * len(pads.before))
    bias = inputs[2] if len(inputs) > 2 else None
    return TvmConv._impl_v11(bb, [image, inputs[1], bias], explicit, None)
