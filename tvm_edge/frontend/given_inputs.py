"""Shapes and values of inputs that the user gives to the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_edge.errors import InputError

__all__ = ["GivenInputs"]


@dataclass(frozen=True)
class GivenInputs:
    """Facts of a model's inputs that its file does not tell.

    Attributes
    ----------
    shapes : mapping of str to tuple of int
        Of inputs with dynamic dimensions.
    values : mapping of str to numpy.ndarray
        Of inputs that are constants of the compiled model, and no longer inputs.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, shapes: Mapping[str, Any] | None = None, values: Mapping[str, Any] | None = None
    ) -> GivenInputs:
        """Check ``input_shapes=`` and ``input_values=``.

        Raises
        ------
        InputError
            A shape that is no sequence.
        """
        made = {}
        for name, shape in (shapes or {}).items():
            try:
                made[name] = tuple(shape)
            except TypeError:
                raise InputError(
                    f"input_shapes gives {name!r} {shape!r}; give the shape of an input, by its "
                    f"name: input_shapes={{'input': (1, 3, 224, 224)}}",
                    name=name,
                    expected="a sequence of int",
                    got=repr(shape),
                ) from None
        return cls(made, {name: np.asarray(value) for name, value in (values or {}).items()})
