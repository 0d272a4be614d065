"""Distinct elements."""

from __future__ import annotations

from math import prod

from tvm import relax

from tvm_edge.ops import registry

__all__ = ["UNIQUE", "unique"]

UNIQUE = "tvm_edge.unique"


def unique(data: relax.Expr, *, in_order: bool = True) -> relax.Call:
    """The distinct elements of a tensor, with the semantics of ONNX ``Unique`` without an axis.

    Parameters
    ----------
    data : relax.Expr
        Of any shape; counts as flat. All NaN are one element, as in NumPy.
    in_order : bool
        Whether they come in ascending order; else in that of their first occurrence.

    Returns
    -------
    relax.Call
        A tuple: the distinct elements ``(m,)``, the position of each one's first occurrence
        ``(m,)``, for each element of `data` which one it is ``(n,)``, how often each occurs
        ``(m,)``; positions and counts int64. Callers name `m` with match_cast.
    """
    return registry.call(UNIQUE, [data], in_order=in_order)


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    (data,) = (arg.ty for arg in call.args)
    device = data.vdevice
    values = relax.TensorType(dtype=str(data.dtype), vdevice=device, ndim=1)
    numbers = relax.TensorType(dtype="int64", vdevice=device, ndim=1)
    if data.shape is None:
        return relax.TupleType([values, numbers, numbers, numbers])
    size = prod(data.shape)
    return relax.TupleType([values, numbers, relax.TensorType((size,), "int64", device), numbers])


registry.register(UNIQUE, _infer_type)
