"""EMDL'21: Figures 1, 2, 3 and 8 to 11."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from benchmarks.fusion.workloads import groups
from benchmarks.papers.exhibits import Exhibit, Source, Table, beside, not_measured
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Measured, Results

__all__ = ["Merged", "batches", "exhibits", "merged"]

_PAPER = papers()["emdl21"]
_NAMES = {ours: theirs for theirs, ours in _PAPER.zoo.items()}
_WAYS = {"stream": "launch by launch", "graph": "inside a CUDA graph"}
_SIZES = (2, 3)

Merged = tuple[Sequence[Sequence[str]], float]
"""Members (network and node), and how many times faster they are in one kernel."""


def exhibits(results: Results) -> list[Exhibit]:
    """The figures, with what was measured for them."""
    return [
        _utilisation(results),
        _complexity(results),
        _batches(results),
        _different(results),
        _identical(results),
        _by_flops(results),
        _two_networks(results),
    ]


def _medians(row: Mapping[str, Any], how: str) -> dict[str, float]:
    return {name: median(us) for name, us in row.get("us", {}).get(how, {}).items() if us}


def _ways(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [how for how in _WAYS if any(row.get("us", {}).get(how) for row in rows)]


def _missing(rows: Sequence[Any], what: str, job: str) -> list[str]:
    return [] if rows else [not_measured(what, job)]


def _utilisation(results: Results) -> Exhibit:
    printed, networks = _PAPER.exhibits["Figure 1"], _PAPER.exhibits["Table 1"]
    flops = {
        name: found["flops"]
        for each in results.of("complexity")
        for name, found in each.result["networks"].items()
    }
    measured: list[tuple[Source, dict[str, float]]] = [
        *((each, _own_ms(each)) for each in results.of("zoo")),
        *((each, each.milliseconds("tvm-edge")) for each in results.quotes("emdl21 Figure 1")),
    ]
    columns: dict[str, dict[str, Any]] = {}
    sources: list[Source] = []
    for each, found in measured:
        times = {name: ms for name, ms in found.items() if name in _NAMES}
        if not times:
            continue
        sources.append(each)
        columns[f"tvm-edge ({each.label}), ms"] = {_NAMES[n]: ms for n, ms in times.items()}
        rates = {n: flops[n] / ms / 1e6 for n, ms in times.items() if n in flops}
        columns["GFLOP/s"] = {_NAMES[n]: rate for n, rate in rates.items()}
        if peak := each.device.get("peak_gflops"):
            columns[f"of {peak:,.0f} GFLOP/s"] = {
                _NAMES[n]: f"{rate / peak:.1%}" for n, rate in rates.items()
            }
    notes = [
        "The paper reads counters of the GPU, which are not read here (Nsight Compute was not "
        "there): what stands in their place is the network's operations by definition over its "
        "time and over the peak of the device's data sheet, all that is between kernels included. "
        "Winograd's algorithm needs fewer operations than those that are counted.",
        networks.unclear,
    ]
    there = {name for column in columns.values() for name in column}
    missing = [name for name in _PAPER.zoo if name not in there]
    if missing:
        notes.append(not_measured(", ".join(missing), "zoo-cuda"))
    tables = [Table(printed.columns, printed.cells), beside(networks, columns)]
    return Exhibit(printed, tables, notes, sources)


def _own_ms(measured: Measured) -> dict[str, float]:
    """Times of networks of :mod:`benchmarks.models.zoo` that ran on the job's own device."""
    return {
        row["network"]: row["ms"]
        for row in measured.result["rows"]
        if row["target"] == measured.target and "ms" in row and not measured.is_elsewhere(row)
    }


def _complexity(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 2"]
    rows = []
    sources = results.of("complexity")
    # It is the same on every machine but for what the layout of one makes of kernels.
    for each in sources[:1]:
        for name, found in each.result["networks"].items():
            spread = found["spread"]
            shares = [
                f"{spread[of][key]:.0%}"
                for key in ("under_5_mflop", "at_most_1_percent")
                for of in ("operators", "kernels")
            ]
            sizes = [found["flops"] / 1e6, found["parameters"] / 1e6, spread["operators"]["count"]]
            rows.append([_NAMES.get(name, name), *sizes, *shares])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ("of operators under 5 MFLOP", "of kernels", "of operators with ≤ 1 %")
        sizes = ("network", "MFLOP", "parameters, M", "operators")
        tables.append(Table([*sizes, *titles, "of kernels"], rows))
    notes = [
        "The networks' graphs are the zoo's; a multiply-add counts as two operations, where the "
        "paper seems to count one. Operators: as in the ONNX file; kernels: after fusion."
    ]
    missing = _missing(rows, "The networks", "complexity-llvm")
    return Exhibit(printed, tables, [*notes, *missing], sources[:1])


def batches(measured: Measured, how: str) -> Mapping[str, Mapping[int, float]]:
    """Throughput over that of one picture, by network and pictures in a batch."""
    found: dict[str, dict[int, float]] = {}
    for row in measured.result:
        us = _medians(row, how)
        if "batch1" in us:
            found[row["title"]] = {
                int(name.removeprefix("batch")): int(name.removeprefix("batch"))
                * us["batch1"]
                / value
                for name, value in us.items()
            }
    return found


def _batches(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 3"]
    rows = []
    sources = results.of("temporal")
    for each in sources:
        for how in _ways(each.result):
            for network, gains in batches(each, how).items():
                name = _NAMES.get(network, network)
                cells = [gains.get(count) for count in range(2, 6)]
                rows.append([name, each.label, _WAYS[how], *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        counts = [f"batch of {count}" for count in range(2, 6)]
        tables.append(Table(["network", "tvm-edge on", "launched", *counts], rows))
    return Exhibit(printed, tables, _missing(rows, "Batches", "temporal-cuda"), sources)


def merged(measured: Measured, how: str) -> Iterator[Merged]:
    """Groups of different operators, all merged, in the best order that was tried.

    A group that was measured at several commits has a row for each, and the last counts.
    """
    known = groups()
    gains: dict[int, float] = {}
    for row in measured.result:
        number = int(row["title"].partition(":")[0])
        us = _medians(row, how)
        best = [value for name, value in us.items() if _is_whole(name, len(known[number]))]
        if "off" in us and best:
            gains[number] = us["off"] / min(best)
    for number, gain in gains.items():
        yield known[number], gain


def _is_whole(variant: str, size: int) -> bool:
    """True for a kernel of all members: ``fused0``, or their order, ``"1 0 2"``."""
    return variant.startswith("fused") or sorted(variant.split()) == list(map(str, range(size)))


def _different(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 8"]
    rows = []
    sources = results.of("groups")
    for each in sources:
        for how in _ways(each.result):
            for size in _SIZES:
                gains = [gain for members, gain in merged(each, how) if len(members) == size]
                if gains:
                    share = f"{sum(gain > 1 for gain in gains) / len(gains):.0%}"
                    middle = geometric_mean(gains)
                    cells = (min(gains), max(gains), middle, share, len(gains))
                    rows.append([size, each.label, _WAYS[how], *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        spread = ("least", "most", "geometric mean", "share that gains", "groups")
        tables.append(Table(["operators", "tvm-edge on", "launched", *spread], rows))
    notes = [
        "The paper: every combination of the operators of six networks; here 48 pairs and 24 "
        "triples of them, drawn before anything was merged "
        "(`benchmarks/results/fusion/groups.json`), in the best order of members that was tried at "
        "the last commit that measured a group, whatever the policy would take of them."
    ]
    missing = _missing(rows, "Groups", "groups-cuda")
    return Exhibit(printed, tables, [*notes, *missing], sources)


def _identical(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 9"]
    rows: list[list[Any]] = []
    sources = [*results.of("identical"), *results.of("flat")]
    for each in sources:
        for how in _ways(each.result):
            for row in each.result:
                us = _medians(row, how)
                if "off" not in us:
                    continue
                cells = [
                    us["off"] / us[name] if name in us else None
                    for name in ("fused0" if "fused0" in us else "fused", "wave", "unrounded")
                ]
                rows.append([row["title"], each.label, _WAYS[how], *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        gains = ("by work-groups", "rounded to waves", "not rounded")
        tables.append(Table(["copies", "tvm-edge on", "launched", *gains], rows))
    notes = [
        "tvm-edge merges by work-groups, so that no wave runs two members: the paper's merging by "
        "work-items, with and without rounding, is measured for three operators without barriers."
    ]
    if not rows:
        notes += [
            not_measured("Copies by work-groups", "identical-cuda"),
            not_measured("Copies by work-items", "flat-cuda"),
        ]
    return Exhibit(printed, tables, notes, sources)


def _by_flops(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 10"]
    rows = []
    sources = results.of("groups")
    for each in sources:
        for how in _ways(each.result):
            kinds: dict[str, list[float]] = {}
            for members, gain in merged(each, how):
                if len(members) == 2:
                    kinds.setdefault(_kinds(members), []).append(gain)
            for kind, gains in sorted(kinds.items()):
                cells = (min(gains), median(gains), max(gains), len(gains))
                rows.append([kind, each.label, _WAYS[how], *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ("least", "median", "most", "pairs")
        tables.append(Table(["kinds", "tvm-edge on", "launched", *titles], rows))
    notes = ["The FLOPs of both members are in the picture, where pairs were measured."]
    missing = _missing(rows, "Pairs", "groups-cuda")
    return Exhibit(printed, tables, [*notes, *missing], sources)


def _kinds(members: Sequence[Sequence[str]]) -> str:
    """Kinds of operators by the names that the zoo gives its nodes."""
    words = {"depthwise": "depthwise", "pool": "pool", "classifier": "dense"}
    found = []
    for _, node in members:
        found.append(next((kind for word, kind in words.items() if word in node), "convolution"))
    return " + ".join(sorted(found))


def _two_networks(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 11"]
    rows = []
    sources = results.of("models")
    for each in sources:
        for how in _ways(each.result):
            for row in each.result:
                us = _medians(row, how)
                apart = us.get("off")
                if not apart:
                    continue
                cells = [us[n] / 1e3 if n in us else None for n in ("fused0", "auto", "concurrent")]
                gain = apart / us["fused0"] if "fused0" in us else None
                rows.append([row["title"], each.label, _WAYS[how], apart / 1e3, *cells, gain])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        times = ("apart, ms", "merged, ms", "`auto`, ms", "at the same time, ms", "apart / merged")
        tables.append(Table(["networks", "tvm-edge on", "launched", *times], rows))
    notes = ["The paper's gain is 1.29 by its times. Utilisation by counters is not read here."]
    missing = _missing(rows, "Two networks", "models-cuda")
    return Exhibit(printed, tables, [*notes, *missing], sources)
