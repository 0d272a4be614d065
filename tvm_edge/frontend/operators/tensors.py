"""Operators that make, select and move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import tvm
from tvm import relax, te, tirx

from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    operand,
    static_shape,
    text,
)

__all__ = ["TENSORS"]

# Minors of n rows have n! terms.
_LARGEST_DETERMINANT = 5


def _bit_cast(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """The same bits as another type of their width."""
    x, kind = inputs[0], onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]).name
    if "bool" in (kind, str(x.ty.dtype)):
        # A byte that is 0 or 1, which LLVM holds in one bit.
        return bb.normalize(relax.op.astype(x, kind))

    def as_kind(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.reinterpret(kind, x(*i)), name="bits")

    return bb.emit_te(as_kind, x)


def _det(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """By minors of the first row, which is exact enough and short for the matrices of geometry."""
    x, shape = inputs[0], static_shape(inputs[0])
    if shape is None or shape[-1] > _LARGEST_DETERMINANT:
        raise NotImplementedError(f"Det of matrices of more than {_LARGEST_DETERMINANT} rows")
    rank = len(shape)

    def element(row: int, column: int) -> relax.Expr:
        line = relax.op.take(x, relax.const(np.int64(row), "int64"), rank - 2, mode="clip")
        at = relax.const(np.int64(column), "int64")
        return bb.emit(relax.op.take(bb.emit(line), at, rank - 2, mode="clip"))

    def minor(row: int, columns: tuple[int, ...]) -> relax.Expr:
        if len(columns) == 1:
            return element(row, columns[0])
        total = None
        for i, column in enumerate(columns):
            rest = minor(row + 1, columns[:i] + columns[i + 1 :])
            term = bb.emit(relax.op.multiply(element(row, column), rest))
            if total is None:
                total = term
            else:
                total = bb.emit((relax.op.subtract if i % 2 else relax.op.add)(total, term))
        return total

    return minor(0, tuple(range(shape[-1])))


def _constant(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """A number or a list of numbers; TVM knows tensors only."""
    for name, dtype in (("value_int", "int64"), ("value_float", "float32")):
        for attribute in (name, f"{name}s"):
            if attribute in attrs:
                return relax.const(np.asarray(attrs[attribute], dtype), dtype)
    return None


def _expand(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """TVM's; but to a shape from the run it does not keep the lengths that are asked to be 1."""
    if isinstance(inputs[1].ty, relax.TensorType) and constant(inputs[1]) is None:
        raise NotImplementedError("Expand to a shape known only at run time")
    return None


def _eye_like(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """A constant; TVM refuses a type other than the input's."""
    shape = static_shape(inputs[0])
    if shape is None or len(shape) != 2:
        raise NotImplementedError("EyeLike of a shape known only at run time")
    dtype = str(inputs[0].ty.dtype)
    if "dtype" in attrs:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(attrs["dtype"]).name
    return relax.const(np.eye(*shape, k=int(attrs.get("k", 0))).astype(dtype), dtype)


def _gather(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """``take`` for constant indices; TVM adds six kernels in case some are negative."""
    data, indices = inputs[:2]
    if not isinstance(indices, tvm.ir.GenericConst) or not isinstance(data.ty, relax.TensorType):
        return None
    axis = int(attrs.get("axis", 0)) % data.ty.ndim
    length = data.ty.shape[axis] if data.ty.shape is not None else None
    values = indices.value.numpy()
    if not isinstance(length, tirx.IntImm) or not values.size:
        return None
    if (values < -int(length)).any() or (values >= int(length)).any():
        return None  # out of range: TVM's converter decides
    positive = relax.const(np.where(values < 0, values + int(length), values), str(values.dtype))
    # "fast" mode warns on standard error although these are in range.
    return bb.normalize(relax.op.take(data, positive, axis, mode="clip"))


def _one_hot(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """A comparison with 0 to depth - 1; TVM wants plain numbers for the two values."""
    indices, _, values = inputs
    depth = constant(inputs[1])
    if depth is None:
        raise NotImplementedError("OneHot needs a constant depth")
    kind, length = str(indices.ty.dtype), int(depth.item())
    axis = int(attrs.get("axis", -1)) % (indices.ty.ndim + 1)
    wide = bb.emit(relax.op.expand_dims(indices, axis))
    negative = relax.op.less(wide, relax.const(0, kind))
    wide = relax.op.where(negative, relax.op.add(wide, relax.const(length, kind)), wide)
    shape = [1] * (indices.ty.ndim + 1)
    shape[axis] = length
    classes = relax.const(np.arange(length).astype(kind).reshape(shape), kind)
    off, on = (
        relax.op.take(values, relax.const(np.int64(i), "int64"), 0, mode="clip") for i in (0, 1)
    )
    return bb.normalize(relax.op.where(relax.op.equal(wide, classes), on, off))


def _range(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """TVM's; but what is computed in the run gives a length that its shape machinery loses."""
    if any(isinstance(bound.ty, relax.TensorType) and constant(bound) is None for bound in inputs):
        raise NotImplementedError("Range needs constant bounds")
    return None


def _reverse_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    lengths = bb.emit(relax.op.astype(inputs[1], "int32"))
    time, batch = int(attrs.get("time_axis", 0)), int(attrs.get("batch_axis", 1))
    return bb.normalize(relax.op.reverse_sequence(inputs[0], lengths, time, batch))


def _space_to_depth(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """With the columns first, which TVM does not know."""
    if attrs.get("mode", b"DCR") != b"CRD":
        return None
    size = int(attrs["blocksize"])
    n, c, h, w = inputs[0].ty.shape
    x = relax.op.reshape(inputs[0], (n, c, h // size, size, w // size, size))
    x = relax.op.permute_dims(x, [0, 1, 3, 5, 2, 4])
    return bb.normalize(relax.op.reshape(x, (n, c * size * size, h // size, w // size)))


def _split(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Into parts of which some have no elements, which TVM's kernel gets wrong."""
    x, shape = inputs[0], static_shape(inputs[0])
    given = constant(operand(inputs, 1)) if attrs["opset"] >= 13 else attrs.get("split")
    lengths = [int(length) for length in given] if given is not None else []
    if shape is None or 0 not in lengths:
        return None
    axis, dtype = int(attrs.get("axis", 0)) % len(shape), str(x.ty.dtype)
    left = [length for length in lengths if length]
    parts = [x]
    if len(left) > 1:
        ends = [int(end) for end in np.cumsum(left)[:-1]]
        found = bb.emit(relax.op.split(x, ends, axis))
        parts = [bb.emit(relax.TupleGetItem(found, i)) for i in range(len(left))]
    none = [0 if i == axis else length for i, length in enumerate(shape)]
    empty = relax.const(np.zeros(none, dtype), dtype)
    rest = iter(parts)
    return relax.Tuple([next(rest) if length else empty for length in lengths])


def _tensor_scatter(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Each element asks where in the update it would be: no two of them write one place."""
    cache, update, starts = inputs[0], inputs[1], operand(inputs, 2)
    shape, new = static_shape(cache), static_shape(update)
    if shape is None or new is None:
        raise NotImplementedError("TensorScatter of shapes known only at run time")
    axis = int(attrs.get("axis", -2)) % len(shape)
    along = [1] * len(shape)
    along[axis] = shape[axis]
    places = relax.const(np.arange(shape[axis]).reshape(along), "int64")
    if starts is not None:
        first = bb.emit(relax.op.reshape(starts, (-1, *[1] * (len(shape) - 1))))
        places = bb.emit(relax.op.subtract(places, first))
    if text(attrs, "mode", "linear") == "circular":
        places = bb.emit(relax.op.floor_mod(places, relax.const(np.int64(shape[axis]), "int64")))
    last = relax.const(np.int64(new[axis] - 1), "int64")
    zero = relax.const(np.int64(0), "int64")
    inside = bb.emit(
        relax.op.logical_and(
            relax.op.greater_equal(places, zero), relax.op.less_equal(places, last)
        )
    )
    held = bb.emit(relax.op.minimum(relax.op.maximum(places, zero), last))
    held = bb.emit(relax.op.broadcast_to(held, shape))
    written = bb.emit(relax.op.gather_elements(update, held, axis))
    return bb.normalize(relax.op.where(inside, written, cache))


TENSORS: dict[str, Converter] = {
    "BitCast": _bit_cast,
    "Constant": _constant,
    "Det": _det,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Gather": _gather,
    "OneHot": _one_hot,
    "Range": _range,
    "ReverseSequence": _reverse_sequence,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "TensorScatter": _tensor_scatter,
}
