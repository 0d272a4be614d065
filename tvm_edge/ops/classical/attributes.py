"""Attributes of classical models: lists of numbers, or tensors of a type of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_edge.ops.converter import Attributes

__all__ = ["array_of", "floats"]


def array_of(tensor: Any) -> np.ndarray:
    """Return an attribute that is a tensor as an array."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import onnx.numpy_helper  # which Relax models do without

    return onnx.numpy_helper.to_array(tensor)


def floats(attrs: Attributes, name: str) -> np.ndarray | None:
    """Return a list of float32, or of the type of the attribute ``name_as_tensor``."""
    if f"{name}_as_tensor" in attrs:
        return array_of(attrs[f"{name}_as_tensor"]).reshape(-1)
    return np.asarray(attrs[name], "float32") if attrs.get(name) else None
