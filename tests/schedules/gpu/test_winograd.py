"""Winograd convolution on a GPU: right in every form, and chosen where it is estimated to pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te

import tvm_edge
from tests.compiler.steps import fuse_kernels, legalized, simplified
from tests.onnx_models import reference
from tests.schedules.gpu.harness import MALI, ORIN, check_gpu, launches
from tests.schedules.harness import Graph, assert_close
from tvm_edge.compiler.driver import compile_with
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.ops.convolution import conv2d
from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.product_tile import choose_product_tile
from tvm_edge.schedules.gpu.winograd import products
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs

SERVER = replace(ORIN, cores=132, alus=128, wave=32, registers=65536, max_work_group_size=1024)


def conv(
    batch: int, channels: int, height: int, width: int, filters: int, pads: list[int]
) -> Graph:
    graph, random = Graph(), np.random.default_rng(0)
    weights = random.standard_normal((filters, channels, 3, 3)).astype("float32")
    bias = graph.constant(random.standard_normal(filters).astype("float32"))
    made = graph.op(
        "Conv",
        graph.input(batch, channels, height, width),
        graph.constant(weights),
        bias,
        pads=pads,
    )
    graph.output(graph.op("Relu", made))
    return graph


def residual() -> Graph:
    """Return a network whose epilogue reads an image and a value for each column."""
    graph, random = Graph(), np.random.default_rng(1)
    weights = random.standard_normal((9, 16, 3, 3)).astype("float32")
    made = graph.op("Conv", graph.input(1, 16, 8, 12), graph.constant(weights), pads=[1] * 4)
    epilogue = graph.op("Mul", graph.op("Add", made, graph.input(1, 9, 8, 12)), graph.input(12))
    graph.output(graph.op("Sigmoid", epilogue))
    return graph


GRAPHS = {
    "whole tiles": conv(1, 16, 8, 12, 20, [1] * 4),
    "parts of tiles": conv(2, 9, 7, 13, 11, [1] * 4),
    "uneven padding": conv(1, 8, 9, 6, 8, [2, 0, 1, 3]),
    "no padding": conv(1, 8, 11, 10, 16, [0] * 4),
    "smaller than a tile": conv(7, 8, 2, 1, 8, [1] * 4),
    "residual": residual(),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_results(
    m: int, graph: Graph, gpu: str, large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv2d, "choose_config", lambda *_: ConvConfig("winograd", m=m))
    kernels = check_gpu(graph, gpu)
    assert [kernel.rule for kernel in kernels[:1]] == ["handwritten"]
    assert [kernel.rule for kernel in kernels[1:]] == ["tiled", "winograd_output"]
    # Each belongs to the convolution, and what follows it is in the last one.
    nodes = graph.model().graph.node
    own = next(name for kernel in kernels[:1] for name in kernel.operators)
    assert all(own in kernel.operators for kernel in kernels)
    assert len(kernels[-1].operators) == len(nodes)


# ------------------------------------------------------------------------------- the choice


def same(channels: int, size: int, filters: int) -> ConvWorkload:
    return ConvWorkload(1, channels, size, size, filters, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)


@pytest.mark.parametrize(
    ("workload", "algorithm"),
    [
        (same(256, 56, 256), "winograd"),
        (same(64, 224, 64), "winograd"),
        (same(3, 224, 64), "direct"),  # the transforms are shared by three channels
        (same(16, 7, 16), "direct"),  # nothing but launches
        (replace(same(256, 56, 256), strides=(2, 2)), "direct"),
        (replace(same(256, 56, 256), dilation=(2, 2)), "direct"),
        (replace(same(256, 56, 256), groups=2), "direct"),
        (replace(same(256, 56, 256), kernel=(5, 5), padding=(2, 2, 2, 2)), "direct"),
        (replace(same(256, 56, 256), groups=256), "items"),  # channels share nothing
        (replace(same(64, 224, 64), batch=8), "winograd"),
        (replace(same(64, 224, 64), batch=1024), "direct"),  # no 32-bit index into the tiles
    ],
)
def test_choice(workload: ConvWorkload, algorithm: str) -> None:
    config = choose_config(workload, SERVER)
    assert config.algorithm == algorithm and not config.knobs
    assert (config.m > 0) == (algorithm == "winograd")


def test_dear_launches_are_avoided() -> None:
    """Two more kernels, and a second one for sums in parts, have to pay for themselves."""
    cheap, dear = replace(SERVER, launch_us=1.65), replace(SERVER, launch_us=20.0)
    small, large = same(128, 28, 128), same(64, 224, 64)
    assert choose_config(small, cheap).algorithm == "winograd"
    assert choose_config(small, dear).algorithm == "direct"
    assert choose_config(large, dear).algorithm == "winograd"
    extents = (1, 128, 28 * 28, 1152)
    dearest = replace(SERVER, launch_us=500.0)
    tiles = [choose_product_tile(extents, 9, spec) for spec in (cheap, dearest)]
    assert [tile is not None and tile.parts > 1 for tile in tiles] == [True, False]


def test_without_local_memory_on_the_chip_nothing_is_tiled() -> None:
    assert choose_config(same(256, 56, 256), MALI) == ConvConfig("items")
    space = config_space(same(256, 56, 256), MALI)
    assert {config.algorithm for config in space.configs} == {"items", "plain"}


def test_the_report_says_which_convolutions(
    gpu: str, large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv2d, "choose_config", lambda *_: ConvConfig("winograd", m=4))
    graph = conv(1, 16, 8, 12, 20, [1] * 4)
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    (layout,) = compiled.report.layouts.values()
    assert "Winograd" in layout


# ------------------------------------------------------------------------------ config space


def test_space_has_every_algorithm_and_the_heuristic_first() -> None:
    workload = same(64, 56, 64)
    space = config_space(workload, SERVER)
    assert len(set(space.configs)) == len(space.configs)
    kinds = {(config.algorithm, config.m) for config in space.configs}
    assert kinds == {("plain", 0), ("direct", 0), ("winograd", 2), ("winograd", 4)}
    first, chosen = space.configs[0], choose_config(workload, SERVER)
    assert (first.algorithm, first.m) == (chosen.algorithm, chosen.m)
    tile = read_knobs(Tile, first.knobs)
    extents = (36, 64, 14 * 14, 64) if chosen.m == 4 else (1, 64, 56 * 56, 576)
    assert tile == choose_product_tile(extents, 1 if chosen.m else 9, SERVER)
    assert {"rows", "columns", "item_rows", "item_columns", "depth", "parts"} <= set(space.knobs)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("place", [0, 7, -2])
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_given_configuration_is_what_runs(
    algorithm: str, place: int, gpu: str, large_gpu: None
) -> None:
    """Any of the space; the launch has as many work-items as its tile."""
    graph = conv(1, 16, 8, 12, 20, [1] * 4)
    workload = ConvWorkload(1, 16, 8, 12, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    own = [c for c in config_space(workload, SERVER).configs if c.algorithm == algorithm]
    config = own[place]
    compiled = compile_with(graph.model(), gpu, {workload: config}, fallback="none")
    found = [kernel.rule for kernel in compiled.report.kernels]
    assert found == (
        ["tiled"] if algorithm == "direct" else ["handwritten", "tiled", "winograd_output"]
    )
    result = compiled.run(graph.values)
    for name, value in reference(graph.model(), graph.values).items():
        assert_close(result[name], value, name)


def test_knobs_reach_the_schedule() -> None:
    tile = Tile(16, 32, 4, 4, 9, parts=2)
    image, filters = (te.placeholder(s, "float32") for s in ((36, 24, 32), (36, 24, 48)))
    func = te.create_prim_func([image, filters, products(image, filters, knobs_as_text(tile))])
    first, *_ = launches(schedule(func, SERVER).func)
    assert first.items == tile.items and first.groups == 36 * 2 * 2 * 2
    # A device that does not take it gets a tile of its own.
    small = replace(SERVER, max_work_group_size=32, local_memory=4096)
    large = Tile(128, 128, 8, 8, 16)
    func = te.create_prim_func([image, filters, products(image, filters, knobs_as_text(large))])
    first, *_ = launches(schedule(func, small).func)
    assert first.items <= 32


def test_allowing_tf32_does_not_round_what_the_transforms_make() -> None:
    """Tensor cores where they are faster; Winograd's products stay at float32."""
    assert choose_config(same(256, 56, 256), SERVER).algorithm == "winograd"
    assert choose_config(same(512, 7, 512), SERVER, "tf32").algorithm == "direct"
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_87"}, host="llvm")
    resolved = replace(resolve_target(target), spec=SERVER)
    model = conv(1, 64, 224, 224, 64, [1] * 4).model()
    with resolved.cpu.target:
        simple = simplified(load_model(model, None).module)
    workload = same(64, 224, 64)
    with resolved.target:
        legal = legalized(simple, resolved, "tf32", {workload: ConvConfig("winograd", m=4)})
        fused = fuse_kernels(legal, resolved)
        rules = {s.rule for s in schedule_kernels(fused, resolved, "tf32")[1].values()}
    assert "tiled" in rules and "tensor_core" not in rules
