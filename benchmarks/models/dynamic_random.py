"""Random shapes in the ranges of a model's open dimensions, beside ONNX Runtime's outputs.

Hypothesis draws the shapes and, where one is wrong, looks for the smallest that is. Inputs are
those of :func:`~benchmarks.models.dynamic_jobs.steady_inputs`, as for the shapes that are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.common.correctness import TOLERANCE
from benchmarks.models.against_onnx_runtime import compare_run
from benchmarks.models.dynamic_cases import DynamicCase
from tvm_edge.report.dims import parse_dim

__all__ = ["agrees_at_random_shapes"]

_MOST_ELEMENTS = 1 << 20
"""Largest input, a picture of 590 x 590: a hundred shapes then take minutes."""

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
Make = Callable[[int, tuple[int, ...]], tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]


def agrees_at_random_shapes(case: DynamicCase, run: Run, make: Make, count: int) -> dict[str, Any]:
    """Compare outputs at `count` shapes.

    Parameters
    ----------
    case : DynamicCase
    run : callable
        The artifact's.
    make : callable
        Return inputs and the expected outputs for a seed and a shape.
    count : int

    Returns
    -------
    dict
        The number of shapes, the worst error and its shape; ``wrong``, the smallest wrong shape.
    """
    found: dict[str, Any] = {"shapes": 0, "error": 0.0, "shape": None, "wrong": None}

    @given(_shapes(case))
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    def compare(shape: tuple[int, ...]) -> None:
        inputs, expected = make(crc32(repr(shape).encode()), shape)  # the same at the next call
        found["shapes"] += 1
        error = float(compare_run(run(inputs), expected)["error"])
        if error >= found["error"]:
            found["error"], found["shape"] = error, shape
        if error > TOLERANCE:
            found["wrong"] = shape  # the last is the smallest
        assert error <= TOLERANCE

    try:
        compare()
    except AssertionError:
        assert found["wrong"] is not None, "only a wrong shape ends the search"
    return found


def _shapes(case: DynamicCase) -> st.SearchStrategy[tuple[int, ...]]:
    lengths = []
    for dim in case.dims:
        if isinstance(dim, int):
            lengths.append(st.just(dim))
            continue
        known = parse_dim(dim)
        step = known.multiple or 1
        steps = st.integers(-(-(known.min or 1) // step), (known.max or 1) // step)
        lengths.append(steps.map(lambda number, step=step: number * step))
    return st.tuples(*lengths).filter(lambda shape: prod(shape) <= _MOST_ELEMENTS)
