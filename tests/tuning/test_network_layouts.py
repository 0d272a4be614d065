"""Layouts of real networks: the module that is compiled, its costs, and what is kept."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from tvm import relax

import tvm_edge
from tests.compiler.steps import simplified
from tests.marks import sampled
from tests.records.made import measured
from tests.schedules.blocked_harness import Conv
from tests.schedules.harness import Graph
from tests.tuning.layout_networks import (
    CPU,
    ONE,
    SMALL_MODEL,
    check_outputs,
    mixed_layouts,
    network,
)
from tests.tuning.stand_in import StandIn
from tvm_edge.compiler.driver import compile_with
from tvm_edge.errors import InputError
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.records import (
    add_records,
)
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph
from tvm_edge.report import layout_name
from tvm_edge.schedules.conv_records import config_space
from tvm_edge.schedules.cpu.algorithm import block_sizes
from tvm_edge.tuning import measurer
from tvm_edge.tuning.graph_tuner import GraphTuner, check_graph, uniform
from tvm_edge.tuning.layout_costs import transform_kinds, ways
from tvm_edge.tuning.transform_times import estimate_transforms, measure_transforms
from tvm_edge.tuning.tunable import layout_graph_of

# ------------------------------------------------------------------------------- real networks


@pytest.fixture(scope="module")
def graph() -> Graph:
    return network()


@pytest.fixture(scope="module")
def model(graph: Graph) -> onnx.ModelProto:
    return graph.model()


def convolutions(found: LayoutGraph) -> dict[str, int]:
    """The number of each convolution by its size of window and filters: names are not in it."""
    return {f"{w.channels}-{w.filters}-{w.groups}": i for i, w in found.convolutions.items()}


def test_every_operator_has_its_layouts(model: onnx.ModelProto) -> None:
    found, _ = layout_graph_of(model, CPU)
    usable = set(block_sizes(CPU.spec))
    assert len(found.convolutions) == 8
    by_kind = {node.what.split()[0]: node for node in found.nodes}
    assert set(by_kind["conv2d"].layouts) >= {0, CPU.spec.lanes()}
    assert len(by_kind["relax.nn.max_pool2d"].layouts) >= 3
    assert set(by_kind["relax.add"].layouts) <= usable | {0}
    for name in ("parameter", "results", "relax.nn.softmax"):
        assert by_kind[name].layouts == (0,)
    stem = found.nodes[next(iter(found.convolutions))]
    assert set(stem.reads[0].layouts) == {0}, "three channels are read one by one"
    again, _ = layout_graph_of(model, CPU)
    assert again.digest == found.digest


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("seed", range(8))
def test_transforms_are_those_that_the_problem_counts(seed: int, tmp_path: Path) -> None:
    model = network(split=False).model()
    _, problem, layouts, plan = mixed_layouts(model, seed, tmp_path)
    simple = simplified(load_model(model).module)
    blocked = BlockLayout(CPU.spec, None, plan)(simple)
    blocked = relax.transform.DeadCodeElimination()(blocked)
    called = [re.sub(r"\d*$", "", name) for name in kernel_calls(blocked)]
    kinds = Counter(name for name in called if name.endswith("pack"))
    expected = Counter(
        "pack" if not t.before else "repack" if t.after else "unpack"
        for t in problem.needed(layouts)
    )
    assert kinds == expected


@pytest.mark.parametrize("seed", sampled(range(4), 4))
def test_any_choice_is_compiled_as_it_says(
    graph: Graph, model: onnx.ModelProto, seed: int, tmp_path: Path
) -> None:
    """And its outputs are ONNX Runtime's."""
    found, _, layouts, plan = mixed_layouts(model, seed, tmp_path)
    compiled = compile_with(model, "llvm", {}, layout_plan=plan)
    check_outputs(compiled, graph, model)
    convs = [node.name for node in model.graph.node if node.op_type == "Conv"]
    shown = (compiled.report.layouts.get(name, "NCHW").split(",")[0] for name in convs)
    assert Counter(shown) == Counter(layout_name(layouts[i]) for i in found.convolutions)


def test_transforms_are_measured(model: onnx.ModelProto) -> None:
    found, _ = layout_graph_of(model, CPU)
    kinds = transform_kinds(found)
    lanes = CPU.spec.lanes()
    assert {(0, lanes), (lanes, 0), (lanes, 2 * lanes)} <= set(kinds)
    wanted = {kind: kinds[kind] for kind in ((0, lanes), (lanes, 0), (lanes, 2 * lanes))}
    times = measure_transforms(wanted, CPU, lambda: None)
    assert times.measured
    for kind, shapes in wanted.items():
        small, large = min(shapes, key=np.prod), max(shapes, key=np.prod)
        assert 0 <= times.seconds(small, *kind) <= times.seconds(large, *kind) < 1
        assert times.seconds((1, 64, 1, 1), *kind) == 0, "one pixel is a view"


# ------------------------------------------------------------------------------- costs, records


def test_the_fastest_record_of_each_layout_counts(model: onnx.ModelProto, tmp_path: Path) -> None:
    found, _ = layout_graph_of(model, CPU)
    workload = found.convolutions[convolutions(found)["32-48-1"]]
    space = config_space(workload, CPU.spec)
    by_block: dict[int, list] = {}
    for config in space.configs:
        by_block.setdefault(config.block, []).append(config)
    lanes = CPU.spec.lanes()
    add_records(
        tmp_path,
        [
            measured(workload, config, CPU.spec, "llvm", latencies=(seconds,))
            for config, seconds in (
                (by_block[lanes][0], 3e-3),
                (by_block[lanes][-1], 1e-3),
                (by_block[2 * lanes][1], 2e-3),
            )
        ],
    )
    options, warnings = ways([workload], CPU, tmp_path)
    own = options[workload]
    assert not warnings
    assert (own[lanes].config, own[lanes].seconds, own[lanes].measured) == (
        by_block[lanes][-1],
        1e-3,
        True,
    )
    assert own[2 * lanes].config == by_block[2 * lanes][1] and own[2 * lanes].measured
    assert not own[0].measured and own[0].seconds > 1e-4, "by the model, corrected"


def test_what_was_not_measured_is_not_taken_for_a_little(tmp_path: Path) -> None:
    """Without records layouts are as fast as the model says; beside a record they are in doubt."""
    graph = Graph()
    graph.output(Conv(channels=64, filters=64, **ONE).build(graph))
    found, _ = layout_graph_of(graph.model(), CPU)
    (workload,) = found.convolutions.values()
    lanes = CPU.spec.lanes()
    before = ways([workload], CPU, tmp_path)[0][workload]
    assert before[2 * lanes].seconds < 1.2 * before[lanes].seconds
    record = measured(workload, before[lanes].config, CPU.spec, "llvm", latencies=(1e-3,))
    add_records(tmp_path, [record])
    own = ways([workload], CPU, tmp_path)[0][workload]
    assert own[lanes].measured and own[lanes].seconds == 1e-3
    others = [way for block, way in own.items() if block != lanes]
    assert others and all(not way.measured and way.seconds > 1.2e-3 for way in others)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_run_from_end_to_end(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in other layouts are tried as well, NCHW among them; networks are timed."""
    if not real:
        monkeypatch.setattr(measurer, "Pool", type("Own", (StandIn,), {"tried": []}))
    graph = Graph()
    graph.output(Conv(channels=32, filters=64, **ONE).build(graph))
    model = graph.model()
    result = tvm_edge.tune(model, "llvm", trials=9, tuning_logs=tmp_path, graph=True)
    assert result.trials == 9 and result.failed == 0
    assert result.graph is not None and result.graph.measured == 4, "each layout"
    assert result.graph.info.measured > 0 and result.graph.solve_seconds < 10
    assert "layouts: " in result.summary()
    assert result.to_dict()["graph"]["convolutions"] == 1
    found, _ = layout_graph_of(model, CPU)
    (own,) = ways(found.convolutions.values(), CPU, tmp_path)[0].values()
    assert all(way.measured for way in own.values())
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    assert (compiled.report.layout_choice is not None) == result.graph.taken
    check_outputs(compiled, graph, model)


def test_a_run_that_is_interrupted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other layouts, when the first run is through: the second goes on."""
    own = type("Own", (StandIn,), {"tried": [], "interrupt_after": 7})
    monkeypatch.setattr(measurer, "Pool", own)
    result = tvm_edge.tune(SMALL_MODEL, "llvm", trials=12, tuning_logs=tmp_path, graph=True)
    assert result.interrupted and result.graph is None
    before = set(own.tried)
    own.interrupt_after = 10**9
    monkeypatch.setattr(GraphTuner, "__call__", lambda *_: None)
    again = tvm_edge.tune(
        SMALL_MODEL, "llvm", trials=12, tuning_logs=tmp_path, graph=True, resume=True
    )
    assert not again.interrupted and len(own.tried) == len(set(own.tried)) == 12
    assert before < set(own.tried)


def test_one_layout_for_all(model: onnx.ModelProto, tmp_path: Path) -> None:
    """Where a convolution can have it."""
    tuner = GraphTuner(model, "llvm", CPU, None, tmp_path, on_board=True)
    _, problem = tuner.problem()
    best = problem.solve()
    for block in (0, *block_sizes(CPU.spec)):
        found = uniform(problem, tuner.graph, block)
        assert found.seconds >= best.seconds
        for number in tuner.graph.convolutions:
            has = block in tuner.graph.nodes[number].layouts
            assert found.layouts[number] == (block if has else 0)


# ------------------------------------------------------------------------------- arguments


def test_devices_of_one_layout_are_refused() -> None:
    scalar = replace(CPU, spec=replace(CPU.spec, simd_bytes=4))
    with pytest.raises(InputError, match="no others than NCHW") as caught:
        check_graph(scalar)
    assert caught.value.name == "graph"


def test_a_model_that_a_gpu_cannot_run_alone_is_refused(tmp_path: Path) -> None:
    """Before anything is measured: no layouts would be taken for it."""
    graph = Graph()
    data = Conv(channels=8, filters=8, image=(5, 5)).build(graph)
    data = graph.op("Cast", data, to=onnx.TensorProto.DOUBLE, name="wide")
    graph.output(graph.op("Cast", graph.op("Exp", data), to=onnx.TensorProto.FLOAT))
    resolved = resolve_target("mali-t860")
    resolved = replace(resolved, spec=replace(resolved.spec, float64=False))
    with pytest.raises(InputError, match=r"runs on one device.*wide") as caught:
        GraphTuner(graph.model(), "mali-t860", resolved, None, tmp_path)
    assert caught.value.name == "graph" and not list(tmp_path.iterdir())


def test_graph_is_yes_or_no(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither True nor False"):
        tvm_edge.tune(SMALL_MODEL, "llvm", tuning_logs=tmp_path, graph="yes")  # type: ignore[arg-type]


def test_a_model_without_convolutions(tmp_path: Path) -> None:
    graph = Graph()
    graph.output(graph.op("Relu", graph.input(1, 4)))
    result = tvm_edge.tune(graph.model(), "llvm", tuning_logs=tmp_path, graph=True)
    assert result.graph is None and result.trials == 0


def test_every_pair_of_layouts_has_a_price() -> None:
    kinds = list(combinations((0, 8, 16), 2))
    times = estimate_transforms(kinds, CPU.spec)
    assert not times.measured
    assert times.seconds((1, 16, 64, 64), 0, 8) > times.seconds((1, 16, 8, 8), 0, 8) > 0
