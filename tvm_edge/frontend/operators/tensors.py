"""Operators that make, select and move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import tvm
from tvm import relax, tirx

from tvm_edge.frontend.operators.base import Attributes, Converter, constant, static_shape

__all__ = ["TENSORS"]


def _constant(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """A number or a list of numbers; TVM knows tensors only."""
    for name, dtype in (("value_int", "int64"), ("value_float", "float32")):
        for attribute in (name, f"{name}s"):
            if attribute in attrs:
                return relax.const(np.asarray(attrs[attribute], dtype), dtype)
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


TENSORS: dict[str, Converter] = {
    "Constant": _constant,
    "EyeLike": _eye_like,
    "Gather": _gather,
    "OneHot": _one_hot,
    "Range": _range,
    "SpaceToDepth": _space_to_depth,
}
