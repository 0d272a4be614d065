"""A short search finds configurations that compile uses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph
from tvm_edge.compiler.driver import compile_with, convolutions_of
from tvm_edge.hardware import resolve_target
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.cpu.algorithm import config_space
from tvm_edge.tuning import convolutions, measure_convolutions


@pytest.fixture
def network() -> Graph:
    """Two distinct 3x3 convolutions, one of them twice, and a depthwise one."""
    graph = Graph()
    random = np.random.default_rng(0)
    data = graph.input(1, 32, 12, 12)
    for _ in range(2):
        weights = graph.constant(random.normal(size=(32, 32, 3, 3)) / 17)
        data = graph.op("Relu", graph.op("Conv", data, weights, pads=[1] * 4))
    data = graph.op("Conv", data, graph.constant(random.normal(size=(32, 1, 3, 3))), group=32)
    weights = graph.constant(random.normal(size=(64, 32, 3, 3)) / 17)
    graph.output(graph.op("Conv", data, weights, strides=[2, 2]))
    return graph


def test_every_distinct_convolution_is_measured_once(
    network: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "_SECONDS", 1e-4)
    monkeypatch.setattr(convolutions, "_COLD_BYTES", 1 << 16)
    model = network.model()
    resolved = resolve_target("llvm")
    workloads = convolutions_of(model, resolved)
    assert len(workloads) == 3
    seen: list[ConvWorkload] = []
    chosen = measure_convolutions(
        model, count=1, progress=lambda done, total, workload: seen.append(workload)
    )
    assert seen == workloads
    for workload, config in chosen.items():
        assert config in config_space(workload, resolved.spec).configs
    assert {w.kernel for w in chosen} == {(3, 3)} and not any(w.depthwise for w in chosen)


def test_measured_choices_are_compiled(network: Graph) -> None:
    """Whatever the heuristic would say: these convolutions are too small for it to block them."""
    model = network.model()
    spec = resolve_target("llvm").spec
    first, _, last = convolutions_of(model, resolve_target("llvm"))
    winograd = next(c for c in config_space(first, spec).configs if c.algorithm == "winograd")
    compiled = compile_with(model, "llvm", {first: winograd, last: ConvConfig("plain")})
    rules = [kernel.rule for kernel in compiled.report.kernels]
    assert rules.count("winograd") == 2 and "conv2d" in rules
    layouts = list(compiled.report.layouts.values())
    assert layouts.count(f"NCHW{spec.lanes()}c, Winograd") == 2
    for name, expected in reference(model, network.values).items():
        assert relative_error(compiled.run(network.values)[name], expected) < 1e-5
