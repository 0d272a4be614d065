"""Tiles through local memory: right for any tile and shape, and within the device's limits."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.compiler.steps import lowered as lowered_model
from tests.schedules.gpu.graphs import conv, matrices, residual
from tests.schedules.gpu.harness import ORIN, check_gpu, gpu_functions, launches
from tests.schedules.harness import Graph
from tvm_edge.report import KernelInfo
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL
from tvm_edge.schedules.base import workspace_of
from tvm_edge.schedules.gpu import schedule, tiled
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.product_tile import choose_product_tile


def rules(kernels: tuple[KernelInfo, ...]) -> list[str]:
    return [kernel.rule for kernel in kernels]


def chain() -> Graph:
    """Four convolutions, so that some launches read no input of the model."""
    graph, random = Graph(), np.random.default_rng(0)
    value = graph.input(1, 8, 12, 12)
    for _ in range(4):
        weight = graph.constant(random.standard_normal((8, 8, 3, 3)).astype("float32"))
        value = graph.op("Relu", graph.op("Conv", value, weight, pads=[1] * 4))
    graph.output(value)
    return graph


TILES = {
    "square": Tile(32, 32, 4, 4, 8),
    "parts": Tile(16, 32, 4, 4, 8, parts=3),
    "more parts than steps": Tile(16, 16, 2, 4, 8, parts=16),
    "wide items": Tile(64, 64, 8, 8, 9),
    "wide items in parts": Tile(32, 48, 4, 8, 9, parts=2),
    "narrow items": Tile(24, 16, 4, 2, 7),
    "larger than the matrix": Tile(128, 128, 8, 4, 8),
}
USUAL = ("parts", "wide items in parts", "larger than the matrix")
GRAPHS = {
    "3x3": conv(1, 16, 7, 9, outputs=20, kernel=(3, 3), pads=[1] * 4),
    "strided": conv(2, 9, 13, 11, outputs=33, kernel=(3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    "groups": conv(1, 32, 8, 8, outputs=24, kernel=(3, 3), group=2, dilations=[2, 2]),
    "1x1": conv(1, 40, 6, 6, outputs=16, kernel=(1, 1), epilogue=False),
    "batch": matrices((3, 17, 21), (3, 21, 20)),
    "residual": residual(),
}


@pytest.mark.diagonals(4)
@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(tile, id=name, marks=() if name in USUAL else pytest.mark.full)
        for name, tile in TILES.items()
    ],
)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_any_tile(
    tile: Tile, graph: Graph, gpu: str, large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "choose_product_tile", lambda *_: tile)
    assert "tiled" in rules(check_gpu(graph, gpu))


@pytest.mark.parametrize(
    "graph",
    [
        conv(1, 3, 47, 61, outputs=16, kernel=(7, 7), strides=[2, 2], pads=[3] * 4),
        conv(1, 256, 7, 7, outputs=64, kernel=(3, 3), pads=[1] * 4),
        conv(1, 8, 5, 9, 11, outputs=16, kernel=(3, 3, 3), pads=[1] * 6),
        conv(1, 16, 2003, outputs=24, kernel=(5,)),
        matrices((70, 300), (300, 90)),
    ],
    ids=["stem", "small image", "3d", "1d", "matrix"],
)
def test_the_tile_that_is_chosen(graph: Graph, gpu: str, large_gpu: None) -> None:
    assert "tiled" in rules(check_gpu(graph, gpu))


def test_few_results_of_many_terms_are_shared_out() -> None:
    """More groups than tiles, and room for their parts behind the result."""
    spec = replace(ORIN, cores=132)
    graph = conv(1, 512, 7, 7, outputs=512, kernel=(3, 3), pads=[1] * 4)
    functions = [f for _, f in gpu_functions(graph.model()).functions_items()]
    (func,) = (f for f in functions if isinstance(f, tvm.tirx.PrimFunc))
    made = schedule(func, spec)
    assert made.rule == "tiled"
    first, second = launches(made.func)
    assert first.groups >= 0.75 * spec.cores  # 512 by 49 are 8 tiles at most
    (room,) = workspace_of(made.func)
    assert int(room.shape[0]) % (512 * 49) == 0 and int(room.shape[0]) >= 4 * 512 * 49
    assert second.groups * second.items >= 512 * 49
    small = schedule(func, replace(spec, max_work_group_size=64))
    assert small.rule == "tiled" and workspace_of(small.func)
    assert all(launch.items <= 64 for launch in launches(small.func))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_work_group_size": 64},
        {"local_memory": 4096},
        {"registers": 4096, "alus": 8, "cores": 1, "wave": 8},
        {"registers": 0, "alus": 0, "cores": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("window", [1, 9, 25, 49])
def test_tiles_shrink_to_what_a_device_takes(limits: dict[str, Any], window: int) -> None:
    """Drivers that report nothing included."""
    spec = replace(ORIN, **limits)
    for extents in [
        (1, 64, 3136, 64 * window),
        (8, 9, 4, 8 * window),
        (1, 2048, 49, 512 * window),
        (64, 2048, 784, 1024 * window),
    ]:
        tile = choose_product_tile(extents, window, spec)
        if tile is None:
            continue
        assert tile.items <= spec.max_work_group_size
        assert tile.local_bytes <= spec.local_memory
        assert tile.rows % tile.item_rows == tile.columns % tile.item_columns == 0
        assert tile.parts == 1 or 4 * tile.parts * prod(extents[:3]) <= 64 << 20


def test_a_device_without_room_gets_another_rule() -> None:
    graph = conv(1, 16, 28, 28, outputs=32, kernel=(3, 3), pads=[1] * 4)
    for _, func in gpu_functions(graph.model()).functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            assert schedule(func, replace(ORIN, local_memory=256)).rule != "tiled"
            assert schedule(func, replace(ORIN, local_memory_kind="global")).rule != "tiled"


def test_runs_of_cuda_are_recorded() -> None:
    """Without a device: what is replayed, and beside it what the profiler calls."""
    plan = lowered_model(chain().model(), "jetson-orin-nano", "none")
    functions = plan.module.functions_items()
    named = {g.name_hint: f for g, f in functions if isinstance(f, relax.Function)}
    assert "cuda_graph" in str(named["main"])
    assert "cuda_graph" not in str(named[KERNEL_BY_KERNEL])


def test_a_recorded_run_reads_new_inputs(compiled_chain: Any) -> None:
    """And its results are not those of the next run."""
    model, graph, expected = compiled_chain
    assert model.report.kernels
    first = model.run(graph.values)
    (name,) = (n for n in first)
    kept = first[name].copy()
    other = {key: value * 2 for key, value in graph.values.items()}
    second = model.run(other)
    assert abs(first[name] - kept).max() == 0
    assert abs(second[name] - kept).max() > 0
    again = model.run(graph.values)
    assert abs(again[name] - expected[name]).max() <= 1e-4 * abs(expected[name]).max()
    assert len(model.profile(graph.values).kernels) == len(model.report.kernels)


@pytest.fixture
def compiled_chain(gpu: str) -> Any:
    """Four convolutions on a GPU, so that a graph has launches to record."""
    import tvm_edge
    from tests.onnx_models import reference

    graph = chain()
    model = graph.model()
    return tvm_edge.compile(model, gpu, fallback="none"), graph, reference(model, graph.values)
