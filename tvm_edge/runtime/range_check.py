"""Warn of outputs that float16 tensors on their way made infinite.

Float16 ends at 65,504; what is larger is stored as infinity. Later operators make infinities or
NaN of it, which reach the outputs unless a bounded function (a sigmoid, an arg-maximum) hides
them: :func:`tvm_edge.compare` looks at every tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvm_edge.errors import TvmEdgeWarning
from tvm_edge.report import CompileReport

__all__ = ["warn_of_overflow"]


def warn_of_overflow(outputs: Mapping[str, Any], report: CompileReport) -> None:
    """Warn if an output of a model that stores float16 has a number that is not finite.

    Python shows a warning of the same words once.

    Parameters
    ----------
    outputs : mapping of str to np.ndarray
        In host memory.
    report : CompileReport
        Of the model.
    """
    if report.precision is None or not report.precision.stores_float16:
        return
    names = [name for name, value in outputs.items() if not _is_finite(value)]
    if names:
        warnings.warn(
            f"{report.model}: {', '.join(map(repr, names))} has infinity or NaN. With "
            f"precision={report.precision.mode!r} a tensor beyond 65,504, where float16 ends, is "
            "infinite. Unless the inputs or the model itself are to blame, name its operator in "
            "precision_exceptions (--keep-float32): tvm_edge.compare (tvm-edge compare "
            f"--precision {report.precision.mode}) finds it",
            TvmEdgeWarning,
            stacklevel=6,
        )


def _is_finite(value: Any) -> bool:
    """Return whether all numbers of an array are finite, in one pass where they are."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(value.sum(dtype="float32")) or np.isfinite(value).all())
