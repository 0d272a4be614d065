"""Element types: what TVM computes with, and conversions between them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from tvm import relax

from tvm_edge.frontend.operators.base import Attributes, Converter

__all__ = ["TYPES", "refuse_types"]

# Others, of eight bits and fewer, TVM stores but rounds, packs or compares otherwise than ONNX.
_KNOWN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64".split()
)


def refuse_types(op_type: str, inputs: Sequence[relax.Expr]) -> None:
    """Refuse an operator on tensors of a type that is stored but not computed with.

    Raises
    ------
    NotImplementedError
    """
    for value in inputs:
        ty = None if value is None else value.ty
        if isinstance(ty, relax.TensorType) and str(ty.dtype) not in _KNOWN:
            raise NotImplementedError(f"{op_type} of {ty.dtype}")


def _cast(_bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes) -> None:
    """TVM's, to a type that is computed with."""
    name = onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]).name
    if name not in _KNOWN:
        raise NotImplementedError(f"Cast to {onnx.TensorProto.DataType.Name(attrs['to'])}")


TYPES: dict[str, Converter] = {"Cast": _cast}
