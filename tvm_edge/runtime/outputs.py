"""Outputs of a model: those that a caller wants, as arrays or as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_edge.errors import InputError
from tvm_edge.report import TensorSpec
from tvm_edge.runtime.dlpack import host_array, numpy_dtype

__all__ = ["check_names", "named_outputs"]

_PLAIN = frozenset(np.dtype(code).name for code in "?bhilBHILefd")
"""Types that NumPy takes from DLPack as they are."""


def check_names(specs: Sequence[TensorSpec], outputs: Sequence[str] | None) -> None:
    """Refuse what is no list of names.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The model's outputs.
    outputs : sequence of str, optional

    Raises
    ------
    InputError
    """
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
            f"{', '.join(repr(spec.name) for spec in specs)}",
            name="outputs",
            expected="a list",
            got=type(outputs).__name__,
        )


def named_outputs(
    tensors: Iterable[tvm.runtime.Tensor],
    wanted: Mapping[int, str],
    specs: Sequence[TensorSpec],
    device_outputs: bool = False,
) -> dict[str, Any]:
    """Return the results that a caller wants, by name: as NumPy arrays, or where they are.

    Parameters
    ----------
    tensors : iterable of tvm.runtime.Tensor
        Those results, in host memory unless `device_outputs`.
    wanted : mapping of int to str
        Their positions among `specs`, and their names.
    specs : sequence of TensorSpec
        The model's outputs.
    device_outputs : bool
        Leave them where they are.
    """
    if device_outputs:
        return dict(zip(wanted.values(), tensors, strict=True))
    arrays: dict[str, Any] = {}
    for index, tensor in zip(wanted, tensors, strict=True):
        spec = specs[index]
        if spec.stored_as is None and spec.dtype in _PLAIN:  # most of all
            arrays[spec.name] = np.from_dlpack(tensor)
        else:
            array = host_array(tensor)
            stored = spec.stored_as is not None
            arrays[spec.name] = array.view(numpy_dtype(spec.dtype)) if stored else array
    return arrays
