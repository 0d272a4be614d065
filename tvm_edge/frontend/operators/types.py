"""Element types: what TVM computes with, and conversions between them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Cast as TvmCast

from tvm_edge.frontend.operators.base import Attributes, Converter, small_type, text
from tvm_edge.frontend.operators.small_types import SMALL_TYPES, decoded, encoded

__all__ = ["TYPES", "refuse_types"]

_KNOWN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64".split()
)

# What may be done with a type that is only kept: convert it, and move it about.
_MOVES = frozenset(
    "Cast CastLike Concat DequantizeLinear Flatten Gather Identity QuantizeLinear Reshape Shape "
    "Size Slice Split Squeeze Transpose Unsqueeze".split()
)


def refuse_types(op_type: str, inputs: Sequence[relax.Expr], attrs: Attributes) -> None:
    """Refuse an operator on tensors of a type that is stored but not computed with.

    Raises
    ------
    NotImplementedError
    """
    for i, value in enumerate(inputs):
        small = small_type(attrs, i)
        if small and op_type not in _MOVES:
            raise NotImplementedError(f"{op_type} of {small}")
        ty = None if value is None else value.ty
        if isinstance(ty, relax.TensorType) and str(ty.dtype) not in _KNOWN:
            raise NotImplementedError(f"{op_type} of {ty.dtype}")


def _cast(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    kind = onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]).name
    if kind not in _KNOWN and kind not in SMALL_TYPES:
        raise NotImplementedError(f"Cast to {onnx.TensorProto.DataType.Name(attrs['to'])}")
    return _converted(bb, inputs, attrs, kind)


def _cast_like(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    like = inputs[1]
    is_shape = isinstance(like.ty, relax.ShapeType)
    kind = small_type(attrs, 1) or ("int64" if is_shape else str(like.ty.dtype))
    return _converted(bb, inputs, attrs, kind)


def _converted(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes, kind: str
) -> relax.Expr:
    """TVM's conversion, except to and from types that are kept in bytes."""
    x, source = inputs[0], small_type(attrs, 0)
    if source == kind:
        return x
    if source:
        x = decoded(bb, x, source)
    if kind in SMALL_TYPES:
        return encoded(
            bb,
            x,
            kind,
            saturate=bool(attrs.get("saturate", 1)),
            round_mode=text(attrs, "round_mode", "up") if "e8m0" in kind else "nearest",
        )
    return bb.normalize(TvmCast._impl_v13(bb, [x], {"to": kind}, None))


TYPES: dict[str, Converter] = {"Cast": _cast, "CastLike": _cast_like}
