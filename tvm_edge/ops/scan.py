"""Prefix sums, and scans by other associative operators."""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.schedules.vision.operators import OPERATORS

__all__ = ["SCAN", "scan"]

SCAN = "tvm_edge.scan"


def scan(
    data: relax.Expr,
    axis: int = 0,
    *,
    operator: str = "add",
    exclusive: bool = False,
    reverse: bool = False,
    dtype: str | None = None,
) -> relax.Call:
    """Combine each element with all that come before it on an axis (ICPP'19 §3.1.1).

    Parameters
    ----------
    data : relax.Expr
        Of any shape with at least one axis.
    axis : int
        Negative ones count from the end.
    operator : {"add", "multiply", "maximum", "minimum"}
        By NumPy's names; a NaN stays in all results behind it.
    exclusive : bool
        Whether an element is left out of its own result, which then begins with the operator's
        identity.
    reverse : bool
        Whether to begin at the end of the axis.
    dtype : str, optional
        Of the result, and of the calculation (float16: float32); default that of `data`.

    Returns
    -------
    relax.Call
        Of the shape of `data`.

    Raises
    ------
    ValueError
        No such operator.
    """
    if operator not in OPERATORS:
        raise ValueError(f"{SCAN}: operator {operator!r} is none of {', '.join(OPERATORS)}")
    return registry.call(
        SCAN,
        [data],
        axis=axis,
        operator=operator,
        exclusive=exclusive,
        reverse=reverse,
        dtype=dtype or "",
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    (data,) = (arg.ty for arg in call.args)
    axis = int(call.attrs["axis"])
    if data.ndim == 0 or not -data.ndim <= axis < data.ndim:
        raise ValueError(f"{SCAN}: a tensor of {data.ndim} axes has no axis {axis}")
    dtype = str(call.attrs["dtype"]) or str(data.dtype)
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=data.ndim)
    return relax.TensorType(data.shape, dtype, data.vdevice)


registry.register(SCAN, _infer_type)
