"""Geometry of the page's drawings: nothing overlaps, nothing is lost."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest

from tests.report.reports import made_report, profile_of
from tvm_edge.report.page import units
from tvm_edge.report.page.layered import lay_out
from tvm_edge.report.page.memory_chart import memory_chart
from tvm_edge.report.page.placement_graph import device_copies, placement_graph
from tvm_edge.report.page.timeline import estimated, length, measured, ticks


@pytest.mark.parametrize("seed", range(4))
def test_layers_of_a_graph(seed: int) -> None:
    """Edges lead downwards, through a point in every layer between; nodes have room."""
    generator = random.Random(seed)
    count = 60
    edges = {
        (generator.randrange(max(0, node - 12), node), node)
        for node in range(1, count)
        for _ in range(generator.randint(0, 2))
    }
    layout = lay_out(count, edges)
    assert set(layout.edges) == edges
    depth = nx.dag_longest_path_length(nx.DiGraph(edges))
    assert layout.layers == depth + 1
    for (source, reader), between in layout.edges.items():
        path = [layout.nodes[source], *between, layout.nodes[reader]]
        first = path[0][1]
        assert [layer for _, layer in path] == list(range(first, first + len(path)))
    rows: dict[int, list[float]] = {}
    for x, layer in layout.nodes:
        rows.setdefault(layer, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a > 0.999 for a, b in pairwise(row))
    assert min(min(row) for row in rows.values()) >= 0.499
    assert max(max(row) for row in rows.values()) <= layout.width - 0.499


def test_a_chain_is_a_line() -> None:
    layout = lay_out(5, [(i, i + 1) for i in range(4)])
    assert layout.nodes == [(0.5, i) for i in range(5)] and layout.width == 1
    assert lay_out(0, []).layers == 0
    assert lay_out(1, []).nodes == [(0.5, 0)]


def test_what_crosses_is_drawn_and_labelled_once() -> None:
    report = made_report()
    found = device_copies(report)
    devices = [operator.device for operator in report.operators]
    pairs = {(c.source, reader) for c in found for reader in c.readers}
    assert pairs == {
        (source, reader)
        for reader, operator in enumerate(report.operators)
        for source in operator.inputs
        if devices[source] != devices[reader]
    }
    graph = placement_graph(report)
    assert graph is not None
    assert sum(edge.style == "crossing" for edge in graph.edges) == len(pairs)
    assert len(graph.labels) == len({source for source, _ in pairs})
    assert {label for _, _, label in graph.labels} >= {"64.0\u00a0KiB, shared"}


def test_a_view_between_devices_is_no_second_copy() -> None:
    """An operator without a kernel is where what it reads is."""
    report = made_report(21)
    operators = list(report.operators)
    assert (operators[14].device, operators[15].device) == ("opencl", "llvm")
    operators[15] = replace(operators[15], device="", reason="a view")
    found = device_copies(replace(report, operators=tuple(operators)))
    assert (15, (16,)) in [(c.source, c.readers) for c in found]
    assert 14 not in [c.source for c in found]


def test_bars_of_a_lane_lie_one_behind_the_other() -> None:
    report = made_report()
    profile = profile_of(report)
    # Medians may be longer than it took in the last run, whose starts are drawn.
    long = tuple(replace(kernel, time_us=2 * kernel.time_us) for kernel in profile.kernels)
    for lanes in (measured(report, replace(profile, kernels=long)), estimated(report)):
        for lane in lanes:
            ends = [bar.left + bar.width for bar in lane.bars]
            starts = [bar.left for bar in lane.bars]
            assert all(b >= a - 0.01 for a, b in zip(ends, starts[1:], strict=False))
            assert -0.001 <= starts[0] and ends[-1] <= 100.1
    lanes = measured(report, profile)
    assert [lane.name for lane in lanes] == ["opencl", "llvm"]
    assert lanes[0].bars[0].width == pytest.approx(100 * 30 / length(profile), abs=0.01)


def test_marks_of_an_axis() -> None:
    assert [tick.label for tick in ticks(32.1, "ms")] == [f"{i} ms" for i in range(0, 31, 5)]
    assert [tick.left for tick in ticks(4, "µs")] == [0, 12.5, 25, 37.5, 50, 62.5, 75, 87.5, 100]
    assert ticks(0, "ms") == []


def test_a_number_stands_beside_its_unit() -> None:
    """No line breaks between them."""
    written = [
        *map(units.size, (1, 2e3, 3e6, 4e9)),
        *map(units.short_flops, (1, 2e3, 3e6, 4e9)),
        *map(units.time, (1, 2e3, 3e6)),
        units.millions(1_000_000),
    ]
    assert [text for text in written if " " in text or "\u00a0" not in text] == []


def test_memory_is_stacked_to_scale() -> None:
    report = made_report()
    chart = memory_chart(report)
    assert chart is not None and report.memory is not None
    assert [name for _, name, _, _ in chart.areas] == [
        "weights",
        "activations on opencl",
        "activations on llvm",
    ]
    assert [style for style, _, _ in chart.lines] == ["planned", "budget"]
    most = max(map(sum, zip(*report.memory.over_time.values(), strict=True)))
    assert (
        f"{most / 1024:.0f} KiB of activations" in chart.peak.replace("\u00a0", " ")
        and "at kernel 1 " in chart.peak
    )

    def highest(path: str) -> float:
        return min(float(y) for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", path))

    (_, _, planned), (_, _, budget) = chart.lines
    pixels = (chart.base - budget) / (3 << 20)  # in a byte
    top = report.memory.weights + most
    assert highest(chart.areas[-1][3]) == pytest.approx(chart.base - pixels * top, abs=0.2)
    assert highest(chart.areas[-1][3]) >= planned - 0.1
    assert memory_chart(replace(report, memory=None)) is None
