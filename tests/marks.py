"""Tests of an OpenCL device, and parameters that only ``make test-full`` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

__all__ = ["dealt", "in_full", "needs_opencl", "sampled"]

# By a fixture, so that the device is asked for when such a test runs, not at import.
needs_opencl = pytest.mark.usefixtures("on_opencl")


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


def dealt(owners: Mapping[str, Any], cases: Sequence[Any]) -> list[Any]:
    """Parameters ``(owner, cases)``: ``make test`` deals `cases` round, each to one of `owners`.

    ``make test-full`` gives all of them to each.

    Parameters
    ----------
    owners : mapping of str to object
        By the name that ids have.
    cases : sequence
    """
    return [
        *(
            pytest.param(owner, cases[i :: len(owners)], id=name)
            for i, (name, owner) in enumerate(owners.items())
        ),
        *(
            pytest.param(owner, cases, id=f"{name}-all", marks=pytest.mark.full)
            for name, owner in owners.items()
        ),
    ]
