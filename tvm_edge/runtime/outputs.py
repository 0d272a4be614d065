"""Outputs of a model: those that a caller wants, as arrays or as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_edge.errors import ArtifactError, InputError, near_matches
from tvm_edge.report import TensorSpec
from tvm_edge.runtime.devices import to_numpy
from tvm_edge.runtime.dlpack import numpy_dtype

__all__ = ["checked_outputs", "named_outputs", "wanted_outputs"]


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


def checked_outputs(
    tensors: Sequence[tvm.runtime.Tensor], count: int
) -> Sequence[tvm.runtime.Tensor]:
    """Return the first `count` results; what code returns after them is not the user's.

    Raises
    ------
    ArtifactError
        There are fewer.
    """
    if len(tensors) < count:
        raise ArtifactError(
            f"the code of this model returns {len(tensors)} outputs, and its manifest names "
            "more; export it again"
        )
    return tensors[:count]


def named_outputs(
    tensors: Sequence[tvm.runtime.Tensor],
    wanted: Mapping[int, str],
    specs: Sequence[TensorSpec],
    device_outputs: bool = False,
) -> dict[str, Any]:
    """The results that a caller wants, by name: as NumPy arrays, or where they are.

    Parameters
    ----------
    tensors : sequence of tvm.runtime.Tensor
        All results.
    wanted : mapping of int to str
        From :func:`wanted_outputs`.
    specs : sequence of TensorSpec
        The model's outputs.
    device_outputs : bool
        Leave them where they are.

    Raises
    ------
    ArtifactError
        There are fewer results than that.
    """
    checked_outputs(tensors, max(wanted, default=-1) + 1)
    return {
        name: tensors[index]
        if device_outputs
        else _of_its_type(to_numpy(tensors[index]), specs[index])
        for index, name in wanted.items()
    }


def _of_its_type(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return the bytes of an output as the type that the model declares."""
    return array if spec.stored_as is None else array.view(numpy_dtype(spec.dtype))
