"""Operators that sort and scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError
from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    num_outputs,
    operand,
    static_shape,
)
from tvm_edge.ops import scan, unique
from tvm_edge.schedules.vision.keys import SORTABLE

__all__ = ["SORTING"]


def _top_k(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """In order, whether the node asks for it or not; TVM's takes 0 elements for all."""
    data = inputs[0]
    dtype, rank = str(data.ty.dtype), int(data.ty.ndim)
    if dtype not in SORTABLE:
        raise NotImplementedError(f"TopK of {dtype}")
    given = constant(operand(inputs, 1))
    if given is None and len(inputs) > 1:
        raise NotImplementedError("TopK needs a constant k")
    k = int(given.item()) if given is not None else int(attrs.get("k", 1))
    axis = int(attrs.get("axis", -1)) % max(rank, 1)
    length = data.ty.shape[axis] if data.ty.shape is not None else None
    if k < 0 or (isinstance(length, tirx.IntImm) and k > int(length)):
        raise InvalidModelError(
            f"a TopK asks for the first {k} of {length} elements; "
            "give it a k from 0 to the length of its axis"
        )
    if k == 0:
        shape = static_shape(data)
        if shape is None:
            raise NotImplementedError("TopK of 0 elements of a shape known only at run time")
        none = [0 if i == axis else size for i, size in enumerate(shape)]
        return relax.Tuple([relax.const(np.zeros(none, kind), kind) for kind in (dtype, "int64")])
    largest = bool(attrs.get("largest", 1))
    return bb.normalize(relax.op.topk(data, k, axis, "both", largest=largest, dtype="int64"))


def _cumulative(operator: str) -> Converter:
    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr:
        axis = constant(inputs[1])
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


def _unique(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Of single elements; TVM's needs Python in the run."""
    data = inputs[0]
    if "axis" in attrs:
        return None
    dtype = str(data.ty.dtype)
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


SORTING: dict[str, Converter] = {
    "CumProd": _cumulative("multiply"),
    "CumSum": _cumulative("add"),
    "TopK": _top_k,
    "Unique": _unique,
}
