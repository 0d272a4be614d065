"""All generators by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

__all__ = ["GENERATORS", "Exported", "exported", "with_shapes"]

Exported = tuple[onnx.ModelProto, dict[str, np.ndarray]]
"""A model and the values of its inputs."""

Generator = Callable[[int], Exported]

GENERATORS: dict[str, Generator] = {}
"""Models by name: from a seed, which draws weights and inputs."""


def exported(generator: Generator) -> Generator:
    """Enter a generator under its own name."""
    GENERATORS[generator.__name__] = generator
    return generator


def with_shapes(made: Exported, lengths: Mapping[str, int]) -> onnx.ModelProto:
    """Return the model with lengths in the place of the names of open axes.

    Parameters
    ----------
    made : (onnx.ModelProto, dict)
    lengths : mapping of str to int
        By the axis' name; others have the length of the inputs' values.
    """
    model, inputs = made
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, length in zip(dims, inputs[value.name].shape, strict=True):
            dim.dim_value = lengths.get(dim.dim_param, length) if dim.dim_param else length
    return fixed
