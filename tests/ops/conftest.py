"""Targets of tests of single operators."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["llvm", "opencl"])
def target(request: pytest.FixtureRequest) -> str:
    """A CPU, and a GPU of this machine; skips where there is none."""
    if request.param == "opencl":
        request.getfixturevalue("on_opencl")
    return str(request.param)
