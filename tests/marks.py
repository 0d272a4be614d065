"""Parameters that only ``make test-full`` runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["in_full", "sampled"]


def in_full(*values: Any) -> list[Any]:
    """`values` as parameters of tests that ``make test`` leaves out, being more of the same."""
    return [
        pytest.param(*value, marks=pytest.mark.full)
        if isinstance(value, tuple)
        else pytest.param(value, marks=pytest.mark.full)
        for value in values
    ]


def sampled(values: Sequence[Any], step: int) -> list[Any]:
    """`values` as parameters, of which ``make test`` runs every `step`-th."""
    return [v if i % step == 0 else in_full(v)[0] for i, v in enumerate(values)]
