"""The pipelines are TVM's, and a few passes more."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.s_tir import pipeline

from tvm_edge.lowering import cpu_pipeline, cuda_pipeline, opencl_pipeline

LOOPS = ["LaunchLoops", "LegalizeVectors"]
GROUPS = ["RequireWorkGroups"]
ARRAYS = ["RegisterArrays", "TaskPlaces"]
MERGES = ["OutlineMembers", "MergeLoops", "MergeLaunches", "VectorsInLaunches"]
CHECKS = ["DropArgumentChecks", "CheckNarrowed"]
# For kernels whose shapes only the run tells.
OPEN = ["GuardEmptyLaunches", "PlainDivisions", "CheckElements"]
# For the kernels of CPUs that modules for other targets have as well.
FUNCTIONS = ["ExpandFunctions"]
TABLES = ["ByteTables"]
LOADS = [
    "BFloat16Bits",
    "BFloat16Instructions",
    "VectorElements",
    "HalfLoads",
    "AheadLoads",
]
EVERYWHERE = [*FUNCTIONS, *TABLES, *LOADS, *ARRAYS, *MERGES, *CHECKS, *OPEN]
# TVM's pass for some kernels alone.
FOR_SOME = {"CompactScheduled": "s_tir.CompactBufferAllocation"}
# For Hexagon's memory alone; and the one function of a module is no library's entry.
LEFT_OUT = ["s_tir.VerifyVTCMLimit", "s_tir.LowerVtcmAlloc", "tirx.AnnotateEntryFunc"]


def names(passes: list[Any]) -> list[str]:
    return [str(one.info.name) for one in passes]


@pytest.mark.parametrize(
    ("passes", "loops", "groups"),
    [
        (opencl_pipeline.PASSES, LOOPS, GROUPS),
        (cuda_pipeline.PASSES, [], ["DependentLaunches"]),
        (cpu_pipeline.PASSES, ["TransposeTiles"], []),
    ],
    ids=["opencl", "cuda", "cpu"],
)
def test_it_follows_tvm(
    passes: list[Any], loops: list[str], groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of TVM may add passes, or put them in another order."""
    found: list[str] = []

    def record(passes: list[Any]) -> Any:
        found.extend(names(passes))
        return lambda mod: mod

    monkeypatch.setattr(pipeline.tvm.ir.transform, "Sequential", record)
    default, *_ = pipeline.default_s_tir_pipeline()
    default(tvm.IRModule({}))
    own = names(passes)
    theirs = [name for name in own if name not in (*loops, *groups, *EVERYWHERE)]
    assert [FOR_SOME.get(name, name) for name in theirs] == [n for n in found if n not in LEFT_OUT]
    assert own[:2] == ["OutlineMembers", *FUNCTIONS]
    place = own.index("s_tir.LoopPartition")
    assert own[place + 1 : place + 3 + len(loops)] == ["MergeLoops", *loops, "tirx.VectorizeLoop"]
    place = own.index("s_tir.LowerThreadAllreduce")
    merged = ["MergeLaunches", "s_tir.MergeSharedMemoryAllocations", "VectorsInLaunches"]
    assert own[place + 1 : place + 11 + len(groups)] == [
        *merged,
        *OPEN,
        "tirx.SplitHostDevice",
        *groups,
        "tirx.MakePackedAPI",
        *CHECKS,
    ]
