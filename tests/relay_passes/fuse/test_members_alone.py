"""A kernel that is a member of a merged one, and has nothing beside it elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.marks import needs_opencl
from tests.relay_passes.fusion_groups import compiled, groups
from tests.schedules.harness import Graph
from tvm_edge.lowering import outline_members


def merged_and_alone(graph: Graph) -> None:
    """Two layers: the first has the kernel twice, the second once."""

    def layer(data: str, seed: int) -> str:
        weights = np.random.default_rng(seed).normal(size=(16, 16, 3, 3)) / 12
        return graph.op("Relu", graph.op("Conv", data, graph.constant(weights), pads=[1] * 4))

    data = graph.input(1, 16, 12, 10)
    left = layer(data, 0)
    graph.output(layer(data, 1))
    graph.output(layer(left, 2))


@needs_opencl
def test_it_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a CPU are lowered one by one, on all cores."""
    original, found = outline_members._Members.called, []

    def noted(self: Any, func: Any) -> Any:
        found.append(original(self, func))
        return found[-1]

    monkeypatch.setattr(outline_members._Members, "called", noted)
    graph = Graph()
    merged_and_alone(graph)
    assert len(groups(compiled(graph, "opencl"))) == 1
    assert sum(func is not None for func in found) == 1
