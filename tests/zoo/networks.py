"""Which networks a test is run on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tvm_edge import zoo

# Built at full size in `make test`; the others take minutes together.
QUICK = frozenset({"mobilenet_v2", "resnet50_v1", "squeezenet1_0", "ssd_mobilenet_v1"})

CLASSIFIERS = tuple(n for n in zoo.names() if zoo.entry(n).task == "classification")


def marked(names: Iterable[str] = zoo.names()) -> list[Any]:
    """`names` as parameters, those that are not quick left to ``make test-full``."""
    full = pytest.mark.full
    return [n if n in QUICK else pytest.param(n, marks=full) for n in names]
