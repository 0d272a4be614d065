"""Convolutions whose filters are zero along borders of their windows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.blocked_harness import SPECS, check, direct
from tests.schedules.harness import Graph
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu.narrow_windows import NarrowWindows


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng([*shape]).normal(size=shape)


def _with_zeros(starts: list[tuple[int, int]], size: tuple[int, int], length: int) -> np.ndarray:
    """Filters of 3x4 taps, zero but for a part, and so many of each start."""
    weights = np.zeros((len(starts) * length, 5, 3, 4))
    for number, (y, x) in enumerate(starts):
        own = slice(number * length, (number + 1) * length)
        weights[own, :, y : y + size[0], x : x + size[1]] = _weights(length, 5, *size)
    return weights


def test_runs_of_filters_are_found() -> None:
    starts = [(0, 0), (1, 1), (0, 2)]
    weights = _with_zeros(starts, (2, 2), 3)
    found = NarrowWindows.of(weights)
    assert found is not None and list(found.starts) == starts
    assert np.array_equal(found.filters[3:6], weights[3:6, :, 1:3, 1:3])


@pytest.mark.parametrize(
    "weights",
    [
        _with_zeros([(0, 0), (0, 1)], (3, 3), 2),  # three quarters of the taps
        np.concatenate([_with_zeros([(0, 0)], (2, 2), 3), np.zeros((1, 5, 3, 4))]),
        _with_zeros([(i % 2, i % 3) for i in range(17)], (2, 2), 1),  # too many runs
    ],
    ids=["large", "nothing", "mixed"],
)
def test_windows_not_worth_while_stay(weights: np.ndarray) -> None:
    assert NarrowWindows.of(weights) is None


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_kernels_skip_zeros_at_borders(spec: DeviceSpec) -> None:
    graph = Graph()
    for image, starts, pads in (
        ((1, 5, 9, 21), [(0, 0), (1, 2), (1, 0)], [1, 1, 1, 2]),
        ((2, 5, 5, 4), [(1, 1)], [0, 0, 0, 0]),
        ((1, 5, 1, 1), [(0, 1), (1, 0)], [2, 3, 1, 2]),
    ):
        weights = graph.constant(_with_zeros(starts, (2, 2), 1))
        bias = graph.constant(np.arange(len(starts)) / 8)
        made = graph.op("Conv", graph.input(*image), weights, bias, pads=pads)
        graph.output(graph.op("Relu", made))
    compiled = check(graph, spec, direct)
    kernels = [kernel for name, kernel in compiled.kernels.items() if "conv2d" in name]
    assert kernels
    for kernel in kernels:
        assert (5, 2, 2) in [tuple(map(int, param.shape))[1:] for param in kernel.func.params]


@pytest.mark.parametrize(
    ("filters", "kernel", "strides", "pads"),
    [
        (2, (4, 4), (2, 2), [1, 1, 1, 1]),
        (3, (5, 3), (2, 2), [2, 1, 1, 0]),
        (1, (3, 4), (1, 3), [0, 2, 1, 1]),
    ],
    ids=str,
)
def test_phases_of_few_filters(
    filters: int, kernel: tuple[int, int], strides: tuple[int, int], pads: list[int]
) -> None:
    graph = Graph()
    weights = graph.constant(_weights(7, filters, *kernel) / 8)
    made = graph.op("ConvTranspose", graph.input(2, 7, 6, 9), weights, strides=strides, pads=pads)
    graph.output(graph.op("Sigmoid", made))
    check(graph, SPECS[0], direct)
