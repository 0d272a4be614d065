"""Features of classical models: chosen, scaled, normalised, completed, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, scalar, text
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__: list[str] = []


def _extract(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _: Attributes) -> relax.Expr:
    """Take elements of the last axis; a vector counts as a matrix of one row."""
    x, indices = inputs
    shape = static_shape(indices.ty)
    if shape is None:
        raise NotImplementedError("ArrayFeatureExtractor of a number known only at run time")
    if len(shape) != 1:
        indices = bb.emit(relax.op.reshape(indices, (prod(shape),)))
    if x.ty.ndim == 1:
        x = bb.emit(relax.op.expand_dims(x, 0))
    return bb.normalize(relax.op.take(x, indices, x.ty.ndim - 1, mode="clip"))


def _binarize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    (x,) = inputs
    above = bb.emit(relax.op.greater(x, scalar(float(attrs.get("threshold", 0.0)), x)))
    return bb.normalize(relax.op.astype(above, str(x.ty.dtype)))


def _floats(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return x if str(x.ty.dtype) == "float32" else bb.emit(relax.op.astype(x, "float32"))


def _scale(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Subtract the offset and multiply, by one number or one for each feature."""
    x = _floats(bb, inputs[0])
    if "offset" in attrs:
        x = bb.emit(relax.op.subtract(x, relax.const(_per_feature(attrs["offset"]), "float32")))
    if "scale" in attrs:
        x = bb.emit(relax.op.multiply(x, relax.const(_per_feature(attrs["scale"]), "float32")))
    return x


def _per_feature(given: Sequence[float]) -> np.ndarray:
    return np.asarray(given, "float32")


def _normalize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Divide each row by its largest element, its sum or its length; a row of zeros stays."""
    x = _floats(bb, inputs[0])
    axis, norm = x.ty.ndim - 1, text(attrs, "norm", "MAX")
    if norm == "MAX":
        size = relax.op.max(x, [axis], True)
    elif norm == "L1":
        size = relax.op.sum(relax.op.abs(x), [axis], True)
    elif norm == "L2":
        size = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), [axis], True))
    else:
        raise ValueError(f"Normalizer with the norm {norm!r}")
    size = bb.emit(size)
    there = relax.op.not_equal(size, scalar(0, size))
    return bb.normalize(relax.op.divide(x, relax.op.where(there, size, scalar(1, size))))


def _impute(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Replace one value, which may be NaN, by a number of each feature."""
    (x,) = inputs
    dtype = str(x.ty.dtype)
    kind = "floats" if "float" in dtype else "int64s"
    values = attrs.get(f"imputed_value_{kind}")
    if not values:
        raise ValueError(f"Imputer of {dtype} without imputed_value_{kind}")
    replaced = attrs.get(f"replaced_value_{kind[:-1]}", 0)
    is_nan = kind == "floats" and bool(np.isnan(replaced))
    missing = relax.op.isnan(x) if is_nan else relax.op.equal(x, scalar(replaced, x))
    return bb.normalize(relax.op.where(missing, relax.const(np.asarray(values, dtype), dtype), x))


register("ai.onnx.ml.ArrayFeatureExtractor", convert=_extract)
register("ai.onnx.ml.Binarizer", convert=_binarize)
register("ai.onnx.ml.Imputer", convert=_impute)
register("ai.onnx.ml.Normalizer", convert=_normalize)
register("ai.onnx.ml.Scaler", convert=_scale)
