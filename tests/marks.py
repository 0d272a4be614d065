"""Parameters that only ``make test-full`` runs."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["in_full"]


def in_full(*values: Any) -> list[Any]:
    """`values` as parameters of tests that ``make test`` leaves out, being more of the same."""
    return [
        pytest.param(*value, marks=pytest.mark.full)
        if isinstance(value, tuple)
        else pytest.param(value, marks=pytest.mark.full)
        for value in values
    ]
