"""Which outputs of a model a caller wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tvm_edge.errors import InputError, near_matches
from tvm_edge.report import TensorSpec
from tvm_edge.runtime.dlpack import numpy_dtype

__all__ = ["of_its_type", "wanted_outputs"]


def wanted_outputs(specs: Sequence[TensorSpec], outputs: Sequence[str] | None) -> dict[int, str]:
    """Positions and names of the outputs to return.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The model's outputs.
    outputs : sequence of str, optional
        Default all.

    Raises
    ------
    InputError
        Not a list, or not names of outputs.
    """
    names = [spec.name for spec in specs]
    if isinstance(outputs, str):
        raise InputError(
            f"outputs is the string {outputs!r}; pass a list of names: [{outputs!r}]",
            name="outputs",
            expected="a list",
            got=outputs,
        )
    if outputs is not None and not isinstance(outputs, Iterable):
        raise InputError(
            f"outputs is a {type(outputs).__name__}; pass a list of names, of "
            f"{', '.join(map(repr, names))}",
            name="outputs",
            expected="a list",
            got=type(outputs).__name__,
        )
    for name in outputs if outputs is not None else ():
        if name not in names:
            raise InputError(
                f"the model has no output {name!r}; {near_matches(str(name), names)}",
                name=str(name),
                expected=", ".join(names),
                got=str(name),
            )
    return {i: name for i, name in enumerate(names) if outputs is None or name in outputs}


def of_its_type(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The same bytes, of the type that the model says the output has."""
    return array if spec.stored_as is None else array.view(numpy_dtype(spec.dtype))
