"""Find the pass that makes an error, by compiling without one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.compiler.pipeline import PIPELINE
from tvm_edge.errors import DeviceLost, MeasureTimeout, TvmEdgeError
from tvm_edge.workflow.comparison import PassTrial, error_of
from tvm_edge.workflow.references import Build

if TYPE_CHECKING:
    import onnx

__all__ = ["trial_error", "try_passes"]

_WINOGRAD = "Winograd"


def try_passes(
    build: Build,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    tolerance: float,
) -> tuple[PassTrial, ...]:
    """Compile a model without each pass that can be left out, and without Winograd's algorithm.

    Parameters
    ----------
    build : Build
    model : onnx.ModelProto
    inputs, expected : mapping of str to numpy.ndarray
    tolerance : float
        An error within it is gone.
    """
    trials = []
    for name in (_WINOGRAD, *PIPELINE.optional):
        if name == _WINOGRAD:
            without = replace(build, winograd=False)
        else:
            without = replace(build, without=(*build.without, name))
        try:
            error = trial_error(without, model, inputs, expected)
        except (DeviceLost, MeasureTimeout):  # a board that is lost says no more
            raise
        except TvmEdgeError:
            trials.append(PassTrial(name, None, False))
            continue
        trials.append(PassTrial(name, error, error <= tolerance))
    return tuple(trials)


def trial_error(
    build: Build,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> float:
    """Compile and run a model; return the largest error of its outputs."""
    found = build.run(model, inputs)
    return max((error_of(found[name], value) for name, value in expected.items()), default=0.0)
