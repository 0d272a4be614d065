"""From what a caller hands in to the arrays a session takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_edge.errors import InputError, near_matches
from tvm_edge.report import TensorSpec

__all__ = ["bind_inputs", "random_inputs"]


def bind_inputs(specs: Sequence[TensorSpec], values: Mapping[str, Any]) -> list[np.ndarray]:
    """Check `values` against the signature and return arrays in its order.

    Parameters
    ----------
    specs : sequence of TensorSpec
    values : mapping of str to array
        NumPy arrays, or anything with ``__dlpack__`` in host memory. Strided and read-only
        arrays are copied.

    Raises
    ------
    InputError
        A name, shape or type that does not fit; it carries name, expected and got.
    """
    if not isinstance(values, Mapping):
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InputError(
            f"inputs must be a dict from name to array, not a {type(values).__name__}; "
            f"this model's inputs are {names}",
            name="inputs",
            expected="dict",
            got=type(values).__name__,
        )
    known = {spec.name for spec in specs}
    for name in values:
        if name not in known:
            raise InputError(
                f"the model has no input {name!r}; {near_matches(str(name), known)}",
                name=str(name),
                expected=", ".join(sorted(known)),
                got=str(name),
            )
    for spec in specs:
        if spec.name not in values:
            raise InputError(
                f"the input {spec} is missing; add {spec.name!r} to the dict",
                name=spec.name,
                expected=str(spec),
                got="nothing",
            )
    return [_bind(spec, values[spec.name]) for spec in specs]


def _bind(spec: TensorSpec, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise InputError(
                f"the input {spec.name!r} is a {type(value).__name__}; pass a NumPy array or "
                "anything with __dlpack__ (a PyTorch tensor, a TVM tensor)",
                name=spec.name,
                expected="an array",
                got=type(value).__name__,
            )
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as err:
            raise InputError(
                f"the input {spec.name!r} cannot be read through DLPack: {err}; "
                "bring it to host memory first",
                name=spec.name,
                expected="an array in host memory",
                got=type(value).__name__,
            ) from err
    expected = np.dtype(spec.dtype)
    if value.dtype.newbyteorder("=") != expected:
        raise InputError(
            f"the input {spec.name!r} has the type {value.dtype}, and the model takes "
            f"{spec.dtype}; convert it with .astype({spec.dtype!r})",
            name=spec.name,
            expected=spec.dtype,
            got=str(value.dtype),
        )
    if value.shape != spec.shape:
        raise InputError(
            f"the input {spec.name!r} has the shape {value.shape}, and the model takes "
            f"{spec.shape}; resize the data, or compile with "
            f"input_shapes={{{spec.name!r}: {value.shape}}}",
            name=spec.name,
            expected=str(spec.shape),
            got=str(value.shape),
        )
    return np.ascontiguousarray(value, dtype=expected).reshape(spec.shape)


def random_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs for benchmarks: normal floats, and zeros and ones of other types."""
    generator = np.random.default_rng(seed)
    values = {}
    for spec in specs:
        if np.dtype(spec.dtype).kind == "f":
            drawn: np.ndarray = generator.standard_normal(spec.static_shape)
        else:
            drawn = generator.integers(0, 2, spec.static_shape)
        values[spec.name] = drawn.astype(spec.dtype)
    return values
