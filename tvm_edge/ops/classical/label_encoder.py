"""Numbers for numbers by a table: ``LabelEncoder``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_edge.ops.classical.attributes import array_of
from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.registry import register

__all__: list[str] = []

# Suffix of the attributes' names, element type, value of what is not among the keys.
_KINDS: dict[str, tuple[str, Any]] = {"int64": ("int64", -1), "float": ("float32", -0.0)}


def _table(attrs: Attributes, name: str) -> np.ndarray:
    """Return the keys or the values, whichever attribute has them."""
    if f"{name}_tensor" in attrs:
        return array_of(attrs[f"{name}_tensor"]).reshape(-1)
    for kind, (dtype, _) in _KINDS.items():
        if f"{name}_{kind}s" in attrs:
            return np.asarray(attrs[f"{name}_{kind}s"], dtype)
    raise NotImplementedError("LabelEncoder of strings")


def _default(attrs: Attributes, dtype: np.dtype) -> np.ndarray:
    if "default_tensor" in attrs:
        return array_of(attrs["default_tensor"]).reshape(()).astype(dtype)
    kind = "float" if dtype.kind == "f" else "int64"
    value = _KINDS[kind][1]
    if "values_tensor" not in attrs:
        value = attrs.get(f"default_{kind}", value)
    return np.asarray(value, dtype)


def _convert(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Search among the keys in order, and see whether what is found is the key."""
    (x,) = inputs
    keys, values = _table(attrs, "keys"), _table(attrs, "values")
    if keys.dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        raise NotImplementedError("LabelEncoder of strings")
    if len(keys) != len(values):
        raise ValueError(f"LabelEncoder with {len(keys)} keys and {len(values)} values")
    if str(x.ty.dtype) != keys.dtype.name:
        raise ValueError(f"LabelEncoder of {x.ty.dtype} with keys of {keys.dtype}")
    default = relax.const(_default(attrs, values.dtype), values.dtype.name)
    result: relax.Expr = default
    # Of a repeated key the last is taken; all NaN are one key.
    unique, last = np.unique(keys[::-1], return_index=True)
    values = values[::-1][last]
    unnumbered = np.isnan(unique) if keys.dtype.kind == "f" else np.zeros(len(unique), bool)
    numbers, held = unique[~unnumbered], values[~unnumbered]
    if not len(numbers):
        result = bb.emit(relax.op.full_like(x, relax.const(0.0, "float32"), values.dtype.name))
        result = bb.emit(relax.op.add(result, default))
    else:
        table = relax.const(numbers, keys.dtype.name)
        place = bb.emit(relax.op.bucketize(x, table, True, False))
        found = bb.emit(relax.op.take(table, place, 0, mode="clip"))
        value = bb.emit(relax.op.take(relax.const(held, values.dtype.name), place, 0, mode="clip"))
        result = bb.emit(relax.op.where(relax.op.equal(found, x), value, default))
    if unnumbered.any():
        (value,) = values[unnumbered]
        of_nan = relax.const(value, values.dtype.name)
        result = bb.emit(relax.op.where(relax.op.isnan(x), of_nan, result))
    return result


register("ai.onnx.ml.LabelEncoder", convert=_convert)
