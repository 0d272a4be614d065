"""Which networks a test is run on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tvm_edge import zoo

# Built at full size in `make test`; the others take minutes together.
QUICK = frozenset({"mobilenet_v2", "squeezenet1_0", "ssd_mobilenet_v1"})

# Built reduced there: one that normalises before it convolves, one that does not normalise, one
# with ReLU6, one that segments, one that detects.
QUICK_REDUCED = frozenset(
    {"deeplab_v3", "mobilenet_v2", "resnet50_v2", "squeezenet1_0", "ssd_mobilenet_v1"}
)

# A gigabyte of weights: built at full size in few tests only, and not kept.
HUGE = frozenset({"yolov1", "yolov1_large"})

CLASSIFIERS = tuple(n for n in zoo.names() if zoo.entry(n).task == "classification")
DETECTORS = tuple(n for n in zoo.names() if zoo.entry(n).task == "detection")


def marked(names: Iterable[str] = zoo.names()) -> list[Any]:
    """`names` as parameters, without the huge; what is not quick is left to ``make test-full``."""
    full = pytest.mark.full
    return [n if n in QUICK else pytest.param(n, marks=full) for n in names if n not in HUGE]


def reduced() -> list[Any]:
    """All networks, for a test that builds them reduced; most in ``make test-full``."""
    full = pytest.mark.full
    return [n if n in QUICK_REDUCED else pytest.param(n, marks=full) for n in zoo.names()]
