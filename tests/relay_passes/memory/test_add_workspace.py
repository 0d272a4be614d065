"""Room that kernels need beside their results is planned: a run allocates its results alone."""

from __future__ import annotations

from collections import Counter

import pytest
import tvm
from tvm import relax, tirx

from tests.compiler.steps import lowered as lowered_model
from tests.marks import in_full
from tests.relay_passes.concatenations import conv
from tests.schedules.harness import Graph
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.schedules.base import workspace_of

ALLOCATES = ("relax.vm.alloc_storage", "relax.memory.alloc_storage", "relax.builtin.alloc_tensor")


def sums_in_parts() -> Graph:
    """Two chains of products of many terms and few results, whose partial sums are workspace."""
    graph = Graph()
    for _ in range(2):
        data = graph.input(1, 512, 7, 7)
        for channels, filters in ((512, 32), (32, 512), (512, 32)):
            data = conv(graph, data, channels, filters, 1)
        graph.output(data)
    return graph


def allocations(mod: tvm.IRModule) -> dict[str, Counter[str]]:
    """For each function of instructions what it allocates, and what it launches."""
    found: dict[str, Counter[str]] = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        counts = found[gvar.name_hint] = Counter()

        def visit(expr: relax.Expr, counts: Counter[str] = counts) -> None:
            if is_call(expr, *ALLOCATES):
                counts["allocated"] += 1
            elif isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
                counts["launched"] += isinstance(mod[expr.op], tirx.PrimFunc)

        relax.analysis.post_order_visit(func, visit)
    return found


@pytest.mark.parametrize(
    ("model", "fusion"),
    [
        ("", False),
        ("", True),
        *in_full(("zoo:resnet50_v1", False), ("zoo:inception_v3", True)),
    ],
)
def test_a_recorded_run_allocates_its_results_alone(
    model: str, fusion: bool, large_gpu: None
) -> None:
    """Partial sums and transformed images too are taken once, outside of what is recorded."""
    given = model or sums_in_parts().model()
    plan = lowered_model(given, "jetson-orin-nano", "none", parallel_fusion=fusion)
    kernels = [f for _, f in plan.lifted.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert any(len(workspace_of(func)) for func in kernels), "nothing here has partial sums"
    found = allocations(plan.module)
    captured = {name: counts for name, counts in found.items() if "capture" in name}
    assert sum(counts["launched"] for counts in captured.values())
    assert not any(counts["allocated"] for counts in captured.values())
    assert found["main"]["allocated"] == len(plan.imported.outputs)
    assert found["cuda_graph_alloc"]["allocated"]
