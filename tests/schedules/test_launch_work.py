"""What launches take, read off scheduled kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx

from tests.schedules.gpu.harness import MALI, ORIN, gpu_kernels, launches
from tests.schedules.harness import AVX512, Graph, kernels_of
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.group_loops import group_loops, most_even_groups
from tvm_edge.schedules.launch_time import (
    apart_us,
    can_be_even,
    merged_us,
    resident_groups,
    spread_over,
)
from tvm_edge.schedules.launch_work import Launch, launches_of
from tvm_edge.schedules.parallel_policy import LEAST_GAIN


def convolution(channels: int, filters: int, size: int, kernel: int) -> Graph:
    graph = Graph()
    data = graph.input(1, channels, size, size)
    weights = graph.constant(np.zeros((filters, channels, kernel, kernel), "float32"))
    graph.output(graph.op("Relu", graph.op("Conv", data, weights, pads=[kernel // 2] * 4)))
    return graph


@pytest.mark.parametrize("spec", [MALI, ORIN], ids=["mali", "orin"])
@pytest.mark.parametrize("shape", [(64, 96, 28, 1), (32, 32, 14, 3)], ids=str)
def test_a_convolution_on_a_gpu(spec: DeviceSpec, shape: tuple[int, int, int, int]) -> None:
    channels, filters, size, kernel = shape
    found = []
    for each in gpu_kernels(convolution(*shape).model(), spec):
        func = each.scheduled.func
        read = launches_of(func)
        assert read is not None
        assert [(x.groups, x.items) for x in read] == [(x.groups, x.items) for x in launches(func)]
        found += read
    work = 2 * channels * filters * size**2 * kernel**2
    largest = max(found, key=lambda launch: launch.groups * launch.flops)
    # Tiles at the border calculate beyond it; the address of a guard is no work.
    assert 1 <= largest.groups * largest.flops / work < 2
    weights = 4 * channels * filters * kernel**2
    assert weights < largest.nbytes < 3 * (weights + 4 * (channels + filters) * size**2)
    if spec is ORIN:  # through local memory, step by step
        assert largest.local_bytes and largest.steps > 1
        assert largest.local_bytes <= spec.local_memory
    else:
        assert largest.local_bytes == 0 and largest.steps == 1


def test_a_convolution_on_a_cpu() -> None:
    (kernel,) = (
        k for k in kernels_of(convolution(64, 96, 28, 1).model(), AVX512) if "conv" in k.name
    )
    read = launches_of(kernel.scheduled.func)
    assert read is not None
    assert all(launch.items == 1 for launch in read)
    largest = max(read, key=lambda launch: launch.groups * launch.flops)
    assert largest.groups > 1
    assert 1 <= largest.groups * largest.flops / (2 * 64 * 96 * 28**2) < 2


def test_lengths_that_only_the_run_knows() -> None:
    length = tirx.Var("n", "int64")
    data = te.placeholder((length, 4), "float32", "data")
    func = te.create_prim_func([data, te.compute((length, 4), lambda i, j: data[i, j] + 1.0)])
    assert launches_of(schedule(func, ORIN).func) is None


def test_members_have_the_registers_of_each_other() -> None:
    few, many = Launch(100, 64, 1e4, registers=20), Launch(100, 256, 1e4, registers=128)
    assert resident_groups([few], ORIN) > resident_groups([many], ORIN)
    assert resident_groups([few, many], ORIN) == resident_groups([many], ORIN)
    local = replace(few, local_bytes=ORIN.local_memory)
    assert resident_groups([local], ORIN) == 3
    assert resident_groups([few, local], ORIN) == 3


def test_launches_merge_stage_by_stage() -> None:
    small = Launch(2, 128, 1e5)
    alone = apart_us([[small]], ORIN)
    assert apart_us([[small, small], [small]], ORIN) == pytest.approx(3 * alone)
    both = merged_us([[small], [small]], ORIN)
    assert alone < both < 2 * alone
    assert merged_us([[small, small], [small]], ORIN) == pytest.approx(both + alone)


LONG = Launch(128, 224, 2.28e6, 153.0, 16, 73, 13536)
SHORT = Launch(256, 224, 2.1e4, 22.0, 1, 40)


def test_hundreds_of_groups_put_two_of_a_long_kernel_on_some_cores() -> None:
    """A sum of products with a group for each core, beside a depthwise convolution (ResNet's and
    MobileNet's, measured: 20.3 microseconds apart, 27.1 as one, 18.9 in groups that do two)."""
    assert can_be_even([[LONG], [SHORT]], H200) == [True]
    assert spread_over([[LONG], [SHORT]], H200) == [H200.cores]
    assert merged_us([[LONG], [SHORT]], H200) < apart_us([[LONG], [SHORT]], H200)
    # Another launch of the same, of long groups alone, stays as it is.
    assert spread_over([[SHORT, LONG], [LONG, LONG]], H200) == [H200.cores, 0]
    few = replace(SHORT, groups=most_even_groups(H200.cores) - LONG.groups)
    assert spread_over([[LONG], [few]], H200) == [0]
    assert spread_over([[LONG], [replace(few, groups=few.groups + 1)]], H200) == [H200.cores]
    # Who waits for memory does so beside others.
    assert spread_over([[replace(LONG, flops=1e4)], [SHORT]], H200) == [0]


def test_long_groups_of_two_members_leave_few_for_others() -> None:
    """Those would take longer one after the other than two long ones on a core."""
    assert group_loops([128, 128, 256], H200.cores) == [1, 1, 37]
    assert spread_over([[LONG], [LONG], [SHORT]], H200) == [0]


@pytest.mark.parametrize(
    ("counts", "loops"),
    [
        ((128, 135), (1, 1)),
        ((128, 136), (1, 2)),
        ((256, 128), (2, 1)),
        ((132, 368), (1, 3)),  # those with a group for each core keep it
        ((24, 368, 729), (1, 4, 7)),
        ((60, 130, 140), (1, 1, 2)),
        ((300, 300), (3, 3)),
        ((132, 131, 5), None),
    ],
)
def test_groups_that_do_several(counts: tuple[int, ...], loops: tuple[int, ...] | None) -> None:
    found = group_loops(counts, 132)
    assert found == (None if loops is None else list(loops))
    if found is not None:
        given = sum(-(-count // loop) for count, loop in zip(counts, found, strict=True))
        assert given <= most_even_groups(132) == 263


def test_items_that_do_nothing_make_a_group_slower() -> None:
    """Those of a member that shares local memory, in a launch whose groups have more items."""
    long = Launch(1320, 64, flops=1e7, loads=0, steps=1, registers=32, local_bytes=64, nbytes=0)
    times = [
        merged_us([[long], [replace(long, groups=1, items=items, flops=0)]], ORIN)
        for items in (64, 128, 256)
    ]
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0])) and times[1] > times[0]


H200 = replace(
    ORIN,
    cores=132,
    local_memory=49152,
    peak_gflops=66908.0,
    bandwidth_gbs=4800.0,
    launch_us=1.65,
    unified_memory=False,
)


@pytest.mark.parametrize(
    ("first", "second", "pays"),
    [
        # Measured in one launch: 10.5 to 6.9 microseconds; 14.2 to 12.4; 12.8 to 10.9, in groups
        # that do several (14.8 in as many as there are).
        ((192, 64, 35, 1), (192, 48, 35, 1), True),
        ((256, 1024, 14, 1), (64, 256, 56, 1), True),
        ((256, 48, 27, 1), (256, 64, 56, 1), True),
        ((64, 64, 112, 3), (64, 64, 112, 3), False),  # both fill it, for long
    ],
    ids=str,
)
def test_pairs_that_were_measured(
    first: tuple[int, int, int, int], second: tuple[int, int, int, int], pays: bool
) -> None:
    pair = []
    for shape in (first, second):
        found = [
            launches_of(k.scheduled.func) for k in gpu_kernels(convolution(*shape).model(), H200)
        ]
        pair.append([launch for each in found if each is not None for launch in each])
    gain = 1 - merged_us(pair, H200) / apart_us(pair, H200)
    assert (gain >= LEAST_GAIN) == pays
