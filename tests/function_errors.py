"""Errors of functions on CPUs in ulp, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.onnx_models import make_model

__all__ = ["assert_right", "erf", "network", "sample", "ulp"]

_LEAST = 2.0**-126
erf = np.vectorize(math.erf, otypes=[np.float64])

# The function in float64, and its bound in ulp as the module states it.
FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], float]] = {
    "Erf": (erf, 1.1),
    "Exp": (np.exp, 1.0),
    "Log": (np.log, 1.0),
    "Sigmoid": (lambda x: np.exp(-np.logaddexp(0, -x)), 2.0),
    "Tanh": (np.tanh, 2.0),
}

EDGES = [
    *(0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 3.4e38, -3.4e38, 1e-30, -1e-30),
    *(_LEAST, 1.5 * _LEAST, 88.72283, 88.72284, -87.33654, -87.3, -103.0, -200.0, 1.0, -1.0),
]


def sample() -> np.ndarray:
    """Numbers of all sizes, edges first."""
    random = np.random.default_rng()
    parts = [
        np.array(EDGES),
        random.uniform(-100, 100, 30_000),
        random.uniform(-9, 9, 30_000),
        random.normal(size=30_000) * 2.0 ** random.integers(-40, 5, 30_000),
        np.exp(random.uniform(-87, 88, 10_000)),
        np.linspace(88.3, 88.73, 5_000),  # just below the overflow
        np.linspace(0.5, 2, 20_000),
    ]
    return np.concatenate(parts).astype(np.float32)


def ulp(true: np.ndarray) -> np.ndarray:
    """The distance of two neighbouring numbers of float32."""
    exponents = np.floor(np.log2(np.maximum(np.abs(true), _LEAST)))
    return np.asarray(2.0 ** (exponents - 23))


def network(count: int) -> onnx.ModelProto:
    """All functions of ``x``."""
    nodes = [helper.make_node(name, ["x"], [name]) for name in FUNCTIONS]
    return make_model(nodes, {"x": (count,)}, list(FUNCTIONS))


def assert_right(found: Mapping[str, np.ndarray], x: np.ndarray) -> None:
    """Compare each function's results with its bound, and edges with the C library's."""
    for name, (function, bound) in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            true, y = function(x.astype(np.float64)), found[name].astype(np.float64)
            finite = np.isfinite(true) & (np.abs(true) < np.finfo(np.float32).max)
            errors = np.where(finite, np.abs(y - true) / ulp(true), 0)
        # Subnormal results may be zero; Arm's are where they are below 2^-126 before they are
        # rounded, as tanh(2^-126) is. Exponentials may be zero below 2^-125.
        least = 2 * _LEAST if name == "Exp" else _LEAST
        errors = np.where((np.abs(true) <= least) & (np.abs(y) <= least), 0, errors)
        worst = errors.argmax()
        assert errors[worst] <= bound, f"{name}({x[worst]!r}) = {y[worst]!r}: {errors[worst]} ulp"
        rest = ~finite
        with np.errstate(over="ignore"):
            expected = true.astype(np.float32)
        np.testing.assert_array_equal(y[rest], expected[rest], err_msg=name)
        zeros = x == 0
        if name in ("Erf", "Tanh"):
            assert np.array_equal(np.signbit(y[zeros]), np.signbit(x[zeros])), name
        if name in ("Erf", "Tanh", "Sigmoid"):
            assert np.nanmax(np.abs(y)) == 1
