"""Shapes and values of inputs that the user gives to the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_edge.errors import InputError
from tvm_edge.frontend.picture import Picture
from tvm_edge.report import Dim

__all__ = ["GivenInputs", "GivenLength"]

GivenLength = int | str | Dim | None
"""A length, an open dimension, or ``None`` for one that is open by the name that the model has."""


@dataclass(frozen=True)
class GivenInputs:
    """Facts of a model's inputs that its file does not tell.

    Attributes
    ----------
    shapes : mapping of str to tuple of GivenLength
        Of inputs with dynamic dimensions.
    values : mapping of str to numpy.ndarray
        Of inputs that are constants of the compiled model, and no longer inputs.
    pictures : mapping of str to Picture
        Inputs that are prepared in the model.
    """

    shapes: Mapping[str, tuple[GivenLength, ...]] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    pictures: Mapping[str, Picture] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        shapes: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        pictures: Mapping[str, Any] | None = None,
    ) -> GivenInputs:
        """Check ``input_shapes=``, ``input_values=`` and ``preprocess=``.

        Raises
        ------
        InputError
            A shape that is no sequence of lengths, or two that say different things of one
            dimension.
        """
        made = {}
        for name, shape in (shapes or {}).items():
            if isinstance(shape, str) or not hasattr(shape, "__iter__"):
                raise _no_shape(name, shape)
            made[name] = tuple(_length(name, shape, each) for each in shape)
        for name, picture in (pictures or {}).items():
            if not isinstance(picture, Picture):
                raise InputError(
                    f"preprocess gives {name!r} a {type(picture).__name__}; give it a "
                    "tvm_edge.Picture(…)",
                    name=name,
                    expected="Picture",
                    got=type(picture).__name__,
                )
        given = {name: np.asarray(value) for name, value in (values or {}).items()}
        return cls(made, given, dict(pictures or {}))


def _length(name: str, shape: Any, given: Any) -> GivenLength:
    if isinstance(given, str):
        return Dim(given).name
    if given is None or isinstance(given, Dim):
        return given
    if isinstance(given, bool) or not hasattr(given, "__index__") or int(given) < -1:
        raise _no_shape(name, shape)
    return None if int(given) == -1 else int(given)


def _no_shape(name: str, shape: Any) -> InputError:
    return InputError(
        f"input_shapes gives {name!r} {shape!r}; give the shape of an input, by its name: lengths, "
        "and names of dimensions that are open: "
        f"input_shapes={{{name!r}: (1, 3, 'h', 'w')}}",
        name=name,
        expected="a sequence of int, str or Dim",
        got=repr(shape),
    )
