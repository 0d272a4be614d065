"""Config space of convolutions on a CPU."""

from __future__ import annotations

import pytest
from tvm import te

from tests.schedules.harness import AVX2, AVX512, NEON
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import root_blocks
from tvm_edge.schedules.blocked import conv2d, input_block
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import choose_config, config_space, direct_tile, product_tile
from tvm_edge.schedules.cpu.blocked import conv_tile
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, candidates
from tvm_edge.schedules.cpu.winograd import product_tile as tile_of_block
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.schedules.stages import open_reduction
from tvm_edge.schedules.winograd import conv2d_winograd

PLAIN = ConvWorkload(1, 64, 28, 28, 96, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
STRIDED = ConvWorkload(2, 48, 15, 13, 64, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1)
GROUPED = ConvWorkload(1, 64, 9, 11, 64, (5, 1), (1, 1), (2, 0, 2, 0), (1, 1), 2)
DEPTHWISE = ConvWorkload(1, 64, 9, 9, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 64)


@pytest.mark.parametrize("spec", [AVX512, AVX2, NEON], ids=lambda spec: spec.name)
def test_a_convolution_has_three_layouts_and_every_algorithm(spec: DeviceSpec) -> None:
    space = config_space(PLAIN, spec)
    assert len(set(space.configs)) == len(space.configs)
    layouts = {config.block for config in space.configs}
    assert {0, spec.lanes(), 2 * spec.lanes()} <= layouts and len(layouts) >= 3
    kinds = {(config.algorithm, config.m) for config in space.configs}
    assert kinds == {("plain", 0), ("direct", 0), ("winograd", 2), ("winograd", 4)}
    names = {"algorithm", "block", "m", "lines", "columns", "blocks", "order", "padding", "flat"}
    assert set(space.knobs) == names
    fixed = {name for name, values in space.knobs.items() if len(values) == 1}
    assert fixed <= {"flat", "lines"}  # no 1x1 kernel; lines too long for a tile of two


@pytest.mark.parametrize("spec", [AVX512, AVX2, NEON], ids=lambda spec: spec.name)
@pytest.mark.parametrize("workload", [PLAIN, STRIDED, GROUPED, DEPTHWISE])
def test_the_heuristic_is_the_first_of_the_space(workload: ConvWorkload, spec: DeviceSpec) -> None:
    chosen, first = choose_config(workload, spec), config_space(workload, spec).configs[0]
    assert (first.algorithm, first.block, first.m) == (chosen.algorithm, chosen.block, chosen.m)


def test_no_knobs_spill_the_registers() -> None:
    for spec in (AVX512, AVX2, NEON):
        for config in config_space(PLAIN, spec).configs:
            if not config.knobs:
                continue
            knobs = read_knobs(Knobs, config.knobs)
            vectors = max(1, config.block // spec.lanes()) * knobs.blocks
            sums = knobs.lines * knobs.columns * vectors
            assert sums == vectors or sums + vectors + 1 <= spec.vector_registers, config


def test_the_best_of_each_kind_come_first() -> None:
    top = config_space(PLAIN, AVX512).top(2)
    assert top.count(ConvConfig("plain")) == 1
    direct = [c for c in top if c.algorithm == "direct" and c.block == 16]
    best = candidates(direct_tile(PLAIN, 16, 16), AVX512)[:2]
    assert [c.knobs for c in direct] == [knobs_as_text(knobs) for knobs in best]


@pytest.mark.parametrize("workload", [PLAIN, STRIDED, GROUPED])
def test_sizes_of_a_workload_are_those_of_its_kernel(workload: ConvWorkload) -> None:
    """The space is ranked without a kernel, the schedule reads the same sizes off the kernel."""
    depth = input_block(workload, 16)
    channels, filters = workload.channels // depth, workload.filters // 16
    image = te.placeholder((workload.batch, channels, workload.height, workload.width, depth))
    weights = te.placeholder((filters, channels // workload.groups, *workload.kernel, depth, 16))
    sums = conv2d(
        image,
        weights,
        workload.strides,
        workload.padding,
        workload.dilation,
        workload.groups,
    )
    opened = open_reduction(te.create_prim_func([image, weights, sums]))
    assert opened is not None
    read = conv_tile(opened[0].get(opened[1]), padded=any(workload.padding))
    predicted = direct_tile(workload, 16, depth)
    # The kernel reads the padded image, whose bytes are not the workload's.
    same = [name for name in vars(read) if name != "image_bytes" or not any(workload.padding)]
    assert {n: getattr(read, n) for n in same} == {n: getattr(predicted, n) for n in same}


@pytest.mark.parametrize("m", [2, 4])
def test_sizes_of_winograd_are_those_of_its_kernel(m: int) -> None:
    image = te.placeholder((1, 4, 28, 28, 16))
    weights = te.placeholder(((m + 2) ** 2, 6, 4, 16, 16))
    sums = conv2d_winograd(image, weights, m, PLAIN.padding)
    opened = open_reduction(te.create_prim_func([image, weights, sums]))
    assert opened is not None and root_blocks(opened[0])
    assert tile_of_block(opened[0].get(opened[1])) == product_tile(PLAIN, 16, m)
