"""Operators on images with channels last, as ONNX Runtime's NHWC transformer writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes, Converter

__all__ = ["channels_first", "channels_last", "in_either_layout"]


def channels_first(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Transpose ``[N, *spatial, C]`` to ``[N, C, *spatial]``."""
    rank = int(x.ty.ndim)
    return bb.emit(relax.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))


def channels_last(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Transpose ``[N, C, *spatial]`` to ``[N, *spatial, C]``."""
    return bb.emit(relax.op.permute_dims(x, [0, *range(2, int(x.ty.ndim)), 1]))


def in_either_layout(convert: Converter) -> Converter:
    """Make a converter that looks at the attribute ``channels_last`` of one for channels first.

    The first input and the result are images; weights have the same layout in both.
    """

    def converted(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr | None:
        if not attrs.get("channels_last", 0):
            return convert(bb, inputs, attrs)
        image = channels_first(bb, inputs[0])
        result = convert(bb, [image, *inputs[1:]], {**attrs, "channels_last": 0})
        return channels_last(bb, bb.emit(result))

    return converted
