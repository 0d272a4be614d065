"""Cells of tables: medians with their range, verdicts on bars."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["met", "spread"]


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Median and range; a dash where nothing was measured.

    Parameters
    ----------
    values : sequence of float
    form : str
        How a number is written, as in a format string.
    """
    if not values:
        return "–"
    return f"{median(values):{form}} [{min(values):{form}}–{max(values):{form}}]"


def met(is_met: bool) -> str:
    """A verdict on a bar."""
    return "**met**" if is_met else "**missed**"
