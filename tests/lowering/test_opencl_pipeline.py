"""The pipeline of OpenCL kernels is TVM's, and four passes more."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.s_tir import pipeline

from tvm_edge.lowering import opencl_pipeline

LOOPS = ["LaunchLoops", "LegalizeVectors"]
GROUPS = ["RequireWorkGroups"]
# For Hexagon's memory alone.
LEFT_OUT = ["s_tir.VerifyVTCMLimit", "s_tir.LowerVtcmAlloc"]


def names(passes: list[Any]) -> list[str]:
    return [str(one.info.name) for one in passes]


def test_it_follows_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of TVM may add passes, or put them in another order."""
    found: list[str] = []

    def record(passes: list[Any]) -> Any:
        found.extend(names(passes))
        return lambda mod: mod

    monkeypatch.setattr(pipeline.tvm.ir.transform, "Sequential", record)
    default, *_ = pipeline.default_s_tir_pipeline()
    default(tvm.IRModule({}))
    own = names(list(opencl_pipeline._PASSES))
    assert [name for name in own if name not in (*LOOPS, *GROUPS)] == [
        n for n in found if n not in LEFT_OUT
    ]
    place = own.index("s_tir.LoopPartition")
    assert own[place + 1 : place + 4] == [*LOOPS, "tirx.VectorizeLoop"]
    place = own.index("tirx.SplitHostDevice")
    assert own[place + 1 : place + 3] == [*GROUPS, "tirx.MakePackedAPI"]
