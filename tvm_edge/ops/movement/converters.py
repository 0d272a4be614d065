"""Converters of operators that make, select and move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, operand, type_name
from tvm_edge.ops.elements import length_tensor
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of, static_shape

__all__ = [
    "constant",
    "eye_like",
    "gather",
    "one_hot",
    "reverse_sequence",
    "space_to_depth",
    "split",
    "split_lengths",
]


def constant(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convert a number or a list of numbers; TVM knows tensors only."""
    for name, dtype in (("value_int", "int64"), ("value_float", "float32")):
        for attribute in (name, f"{name}s"):
            if attribute in attrs:
                return relax.const(np.asarray(attrs[attribute], dtype), dtype)
    return None


def eye_like(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Make a constant, or a kernel's of open lengths; TVM refuses a type other than the input's."""
    lengths, k = lengths_of(inputs[0].ty), int(attrs.get("k", 0))
    if lengths is None or len(lengths) != 2:
        raise NotImplementedError("EyeLike of a tensor that is not known to have two dimensions")
    dtype = str(inputs[0].ty.dtype)
    if "dtype" in attrs:
        dtype = type_name(attrs["dtype"])
    rows, columns = lengths
    if isinstance(rows, int) and isinstance(columns, int):
        return relax.const(np.eye(rows, columns, k=k).astype(dtype), dtype)

    def eye(like: te.Tensor) -> te.Tensor:
        return te.compute(like.shape, lambda i, j: tirx.EQ(j, i + k).astype(dtype), name="eye")

    return bb.emit_te(eye, inputs[0], primfunc_name_hint="eye_like")


def gather(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Use ``take`` that stays in range; TVM's default trusts indices, and warns of that."""
    data, indices = inputs[:2]
    constants = isinstance(data, tvm.ir.GenericConst) and isinstance(indices, tvm.ir.GenericConst)
    if constants or not isinstance(data.ty, relax.TensorType) or data.ty.ndim < 1:
        return None
    axis = int(attrs.get("axis", 0)) % data.ty.ndim
    length = data.ty.shape[axis] if data.ty.shape is not None else None
    if length is None:
        return None
    kind = str(indices.ty.dtype)
    values = constant_of(indices)
    if values is not None and isinstance(length, tirx.IntImm):
        if not values.size or (values < -int(length)).any() or (values >= int(length)).any():
            return None  # nothing, or out of range: TVM's converter decides
        counted = np.where(values < 0, values + int(length), values)
        indices = relax.const(counted, kind)
    elif values is None or (values < 0).any():
        if isinstance(length, tirx.IntImm):
            end: relax.Expr = relax.const(int(length), kind)
        else:
            end = length_tensor(bb, [length], (), kind)
        negative = relax.op.less(indices, relax.const(0, kind))
        indices = bb.emit(relax.op.where(negative, relax.op.add(indices, end), indices))
    return bb.normalize(relax.op.take(data, indices, axis, mode="clip"))


def one_hot(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Compare with 0 to depth - 1; TVM wants plain numbers for the two values."""
    indices, _, values = inputs
    depth = constant_of(inputs[1])
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


def reverse_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    lengths = bb.emit(relax.op.astype(inputs[1], "int32"))
    time, batch = int(attrs.get("time_axis", 0)), int(attrs.get("batch_axis", 1))
    return bb.normalize(relax.op.reverse_sequence(inputs[0], lengths, time, batch))


def space_to_depth(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Move columns first, which TVM does not know."""
    if attrs.get("mode", b"DCR") != b"CRD":
        return None
    size = int(attrs["blocksize"])
    n, c, h, w = inputs[0].ty.shape
    x = relax.op.reshape(inputs[0], (n, c, h // size, size, w // size, size))
    x = relax.op.permute_dims(x, [0, 1, 3, 5, 2, 4])
    return bb.normalize(relax.op.reshape(x, (n, c * size * size, h // size, w // size)))


def split_lengths(length: int, given: Sequence[int] | None, count: int) -> list[int]:
    """Return the lengths of the parts of a Split: `given`, or `count` of which the last is short.

    Raises
    ------
    ValueError
        They do not add up to `length`.
    """
    if given is None:
        each = -(-length // count)
        given = [max(min(each, length - i * each), 0) for i in range(count)]
    if sum(given) != length:
        raise ValueError(f"a Split into {list(given)} does not fit an axis of length {length}")
    return [int(part) for part in given]


def split(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Split into parts some of which have no elements, which TVM's kernel gets wrong."""
    x, shape = inputs[0], static_shape(inputs[0].ty)
    given = constant_of(operand(inputs, 1)) if attrs["opset"] >= 13 else attrs.get("split")
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
