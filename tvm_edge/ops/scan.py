"""Prefix sums, and scans by other associative operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax

from tvm_edge.errors import InvalidModelError
from tvm_edge.ops import registry
from tvm_edge.ops.converter import Attributes, Converter
from tvm_edge.ops.flops import per_element
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.relay_passes.ir.expressions import constant_of
from tvm_edge.schedules.vision import cpu, gpu
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
        Tensor of any shape with at least one axis.
    axis : int
        Negative ones count from the end.
    operator : {"add", "multiply", "maximum", "minimum"}
        By NumPy's names; a NaN stays in all results after it.
    exclusive : bool
        Whether an element is left out of its own result, which then begins with the operator's
        identity.
    reverse : bool
        Whether to begin at the end of the axis.
    dtype : str, optional
        Type of the result, and of the calculation (float16: float32); default that of `data`.

    Returns
    -------
    relax.Call
        Tensor of the shape of `data`.

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


def _cumulative(operator: str) -> Converter:
    """Make the converter of a cumulative sum or product."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr:
        axis = constant_of(inputs[1])
        if axis is None:
            raise NotImplementedError("a cumulative sum or product needs a constant axis")
        rank = int(inputs[0].ty.ndim)
        if axis.size != 1 or not -rank <= axis.item() < rank:
            raise InvalidModelError(
                f"a cumulative sum or product of {rank} axes names the axis {axis.tolist()}; "
                "give it one that there is"
            )
        return bb.normalize(
            scan(
                inputs[0],
                int(axis.item()),
                operator=operator,
                exclusive=bool(attrs.get("exclusive", 0)),
                reverse=bool(attrs.get("reverse", 0)),
            )
        )

    return convert


def _lower_scan(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``tvm_edge.scan``."""
    attrs = call.attrs
    return _lower_lines(
        site,
        call,
        int(attrs["axis"]),
        operator=str(attrs["operator"]),
        exclusive=bool(attrs["exclusive"]),
        reverse=bool(attrs["reverse"]),
    )


def _lower_cumsum(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.cumsum``."""
    return _lower_cumulative(site, call, "add")


def _lower_cumprod(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.cumprod``."""
    return _lower_cumulative(site, call, "multiply")


def _lower_cumulative(site: KernelSite, call: relax.Call, operator: str) -> relax.Expr:
    axis = call.attrs.axis
    exclusive = bool(call.attrs.exclusive)
    return _lower_lines(
        site,
        call,
        None if axis is None else int(axis),
        operator=operator,
        exclusive=exclusive,
        reverse=False,
    )


def _lower_lines(site: KernelSite, call: relax.Call, axis: int | None, **how: Any) -> relax.Expr:
    """Scan along an axis, or over all elements one after the other."""
    data = call.args[0]
    shape, dtype, out_dtype = list(data.ty.shape), str(data.ty.dtype), str(call.ty.dtype)
    if is_empty(shape):
        return site.zeros(call.ty.shape, out_dtype)
    if axis is None:
        shape, axis = [prod(shape)], 0
    axis %= len(shape)
    lines = [prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])]
    if not site.spec.launches_grids:
        kernel = cpu.scan_lines(dtype, out_dtype, site.spec, **how)
        (result,) = site.call(
            kernel.func, "scan", [site.reshape(data, lines)], [site.tensor(lines, out_dtype)]
        )
    else:
        outer, length, inner = (int(size) for size in lines)
        kernel = gpu.scan_lines(outer, length, inner, dtype, out_dtype, site.spec, **how)
        result, *_ = site.run(kernel, "scan", [site.reshape(data, [outer * length * inner])])
    return site.reshape(result, call.ty.shape)


register("CumProd", convert=_cumulative("multiply"), forming=(1,))
register("CumSum", convert=_cumulative("add"), forming=(1,), flops=per_element(1))

register(SCAN, infer_type=_infer_type, lower=_lower_scan, gpu=PERFORMS_STATIC)
register("relax.cumprod", lower=_lower_cumprod, gpu=PERFORMS_STATIC, flops=per_element(1))
register("relax.cumsum", lower=_lower_cumsum, gpu=PERFORMS_STATIC, flops=per_element(1))
