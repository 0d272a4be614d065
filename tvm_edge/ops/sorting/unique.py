"""Distinct elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.converter import Attributes, num_outputs
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import Fitness, register
from tvm_edge.ops.sorting.rows import workspace
from tvm_edge.schedules.vision import cpu
from tvm_edge.schedules.vision.keys import SORTABLE

__all__ = ["UNIQUE", "unique"]

UNIQUE = "tvm_edge.unique"


def unique(data: relax.Expr, *, in_order: bool = True) -> relax.Call:
    """Find the distinct elements of a tensor, as ONNX ``Unique`` does without an axis.

    Parameters
    ----------
    data : relax.Expr
        Tensor of any shape; counts as flat. All NaN are one element, as in NumPy.
    in_order : bool
        Whether they come in ascending order; else in the order of their first occurrence.

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


def _convert(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convert Unique of single elements, for which TVM's needs Python in the run."""
    data = inputs[0]
    if "axis" in attrs:
        return None
    dtype = str(data.ty.dtype)
    if dtype == "bfloat16":  # which float32 holds, and sorts
        return _as_float32(bb, data, attrs)
    if dtype not in SORTABLE:
        raise NotImplementedError(f"Unique of {dtype}")
    found = bb.emit(unique(data, in_order=bool(attrs.get("sorted", 1))))
    many = tirx.Var("num_unique", "int64")
    results = []
    for i, kind in enumerate((dtype, "int64", "int64", "int64")[: num_outputs(attrs)]):
        result = bb.emit(relax.TupleGetItem(found, i))
        if i != 2:
            result = bb.match_cast(result, relax.TensorType((many,), kind))
        results.append(result)
    return results[0] if len(results) == 1 else relax.Tuple(results)


def _as_float32(bb: relax.BlockBuilder, data: relax.Expr, attrs: Attributes) -> relax.Expr:
    found = _convert(bb, [bb.emit(relax.op.astype(data, "float32"))], attrs)
    values, *numbers = found.fields if isinstance(found, relax.Tuple) else [found]
    values = bb.emit(relax.op.astype(values, str(data.ty.dtype)))
    return relax.Tuple([values, *numbers]) if numbers else values


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Sort, mark where new elements begin, and keep just as many."""
    data = call.args[0]
    dtype, size = str(data.ty.dtype), prod(data.ty.shape)
    if is_empty(data.ty.shape):
        none = [site.zeros((0,), "int64") for _ in range(3)]
        return relax.Tuple([site.zeros((0,), dtype), *none])
    flat = site.reshape(data, [size])
    how: dict[str, Any] = {"descending": False, "index_dtype": "int32", "values": False}
    types = [site.tensor([1, size], "int32"), *workspace(site, size)]
    sort = cpu.argsort_rows(dtype, site.spec, **how)
    order, *_ = site.call(sort.func, "argsort", [site.reshape(data, [1, size])], types)
    mark = cpu.unique(dtype, in_order=bool(call.attrs["in_order"]))
    types = [site.tensor([size], kind) for kind in (dtype, "int64", "int64", "int64")]
    values, first, inverse, counts, total = site.call(
        mark.func,
        "unique",
        [flat, site.reshape(order, [size])],
        [*types, site.tensor([1], "int64")],
    )
    shape = site.emit(relax.op.tensor_to_shape(total))
    many = tirx.Var("num_unique", "int64")
    site.builder.match_cast(shape, relax.ShapeType([many]))

    def head(value: relax.Var, kind: str) -> relax.Var:
        func = cpu.first_elements(kind).func
        (kept,) = site.call(func, "first_elements", [value], [site.tensor([many], kind)])
        return kept

    return relax.Tuple([head(values, dtype), head(first, "int64"), inverse, head(counts, "int64")])


_ON_CPU = Fitness(impossible="the length of its result depends on data")

register("Unique", convert=_convert)
register(UNIQUE, infer_type=_infer_type, lower=_lower, gpu=_ON_CPU)
register("relax.unique", gpu=_ON_CPU)
