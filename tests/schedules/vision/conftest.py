"""Fixtures of the vision operators."""

from __future__ import annotations

import pytest
import tvm

from tests.schedules.vision.harness import device

__all__ = ["device", "target"]


@pytest.fixture(params=["llvm", "opencl", "opencl with local memory"])
def target(request: pytest.FixtureRequest) -> str:
    """Targets of this machine, all of which nothing may leave."""
    kind, *more = str(request.param).split(" ", 1)
    if kind != "llvm":
        if not (tvm.runtime.enabled(kind) and tvm.device(kind, 0).exist):
            pytest.skip(f"no {kind} device on this machine")
        if more:
            request.getfixturevalue("large_gpu")
    return kind
