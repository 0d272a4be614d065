"""Element types: those that TVM computes with, and conversions between them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, small_type, text, type_name
from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.registry import PERFORMS, find, register
from tvm_edge.ops.small_types import SMALL_TYPES, decoded, encoded

__all__ = ["refuse_types"]

_KNOWN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64".split()
)


def refuse_types(op_type: str, inputs: Sequence[relax.Expr], attrs: Attributes) -> None:
    """Refuse an operator on tensors of a type that is stored but not computed with.

    Raises
    ------
    NotImplementedError
    """
    for i, value in enumerate(inputs):
        small = small_type(attrs, i)
        if small and not find(op_type).stored_types:
            raise NotImplementedError(f"{op_type} of {small}")
        ty = None if value is None else value.ty
        if isinstance(ty, relax.TensorType) and str(ty.dtype) not in _KNOWN:
            raise NotImplementedError(f"{op_type} of {ty.dtype}")


def _cast(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    kind = type_name(attrs["to"])
    if kind not in _KNOWN and kind not in SMALL_TYPES:
        import onnx

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
    """Convert by TVM's converter, except to and from types that are stored as uint8."""
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
    from tvm.relax.frontend.onnx.onnx_frontend import Cast as TvmCast

    return bb.normalize(TvmCast._impl_v13(bb, [x], {"to": kind}, None))


def _bit_cast(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Read the same bits as another type of their width."""
    x, kind = inputs[0], type_name(attrs["to"])
    if "bool" in (kind, str(x.ty.dtype)):
        # A byte that is 0 or 1, which LLVM holds in one bit.
        return bb.normalize(relax.op.astype(x, kind))

    def as_kind(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.reinterpret(kind, x(*i)), name="bits")

    return bb.emit_te(as_kind, x)


register("BitCast", convert=_bit_cast)
register("Cast", convert=_cast, stored_types=True, flops=no_flops)
register("CastLike", convert=_cast_like, stored_types=True, flops=no_flops)
register("relax.astype", gpu=PERFORMS, blocks="unary", flops=no_flops)
