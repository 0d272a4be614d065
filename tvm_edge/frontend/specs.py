"""Tensor signatures out of Relax types."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError
from tvm_edge.report import TensorSpec

__all__ = ["output_specs", "spec_of"]


def spec_of(name: str, ty: relax.Type) -> TensorSpec:
    """Return the signature of a Relax tensor; a length not known before the run becomes its symbol.

    Raises
    ------
    InvalidModelError
        `ty` is not a tensor.
    """
    if not isinstance(ty, relax.TensorType):
        raise InvalidModelError(
            f"{name!r} is a {type(ty).__name__}, and inputs and outputs must be tensors; "
            "return tensors one by one"
        )
    if ty.shape is None:
        dims: tuple[int | str, ...] = ("?",) * max(ty.ndim, 0)
    else:
        dims = tuple(int(d) if isinstance(d, tirx.IntImm) else str(d) for d in ty.shape)
    return TensorSpec(name, dims, str(ty.dtype))


def output_specs(names: Sequence[str], main: relax.Function) -> tuple[TensorSpec, ...]:
    """Return the signatures of a function's results, `names` in the order of the returned tuple."""
    # The body's type still has the names of lengths that the signature had to erase.
    ty = main.body.body.ty
    fields = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
    return tuple(spec_of(name, field) for name, field in zip(names, fields, strict=True))
