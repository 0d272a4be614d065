"""ICPP'19: Tables 1 to 5."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.papers.exhibits import (
    NOT_MEASURED,
    Exhibit,
    Source,
    Table,
    beside,
    cell,
    not_measured,
    quoted,
    ratio,
)
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Measured, Results
from benchmarks.papers.quotes import Quoted

__all__ = ["exhibits", "speed_ups"]

_PAPER = papers()["icpp19"]
_NAMES = {ours: theirs for theirs, ours in _PAPER.zoo.items()}

_PEERS = {"Table 1": "OpenVINO", "Table 2": "cuDNN", "Table 3": "cuDNN"}
"""Peers beside ours; in Table 2 the CPU of the same machine where that is measured."""

_STUDY = "de5c59a"  # the last commit with naive vision operators

Times = Mapping[str, Mapping[str, float]]
"""Milliseconds by network of the zoo, of ``tvm-edge`` and the runtimes beside it."""


def exhibits(results: Results) -> list[Exhibit]:
    """The tables, with what was measured for them."""
    return [
        _beside_a_library(
            "Table 1",
            results,
            "cpu-llvm",
            "The paper's OpenVINO and ours ran on different devices: there both runtimes are on "
            "Intel's GPU, here on a CPU. What can be compared is who is ahead of whom on one chip.",
        ),
        _beside_a_library(
            "Table 2",
            results,
            "zoo-opencl",
            "No Mali was reached, and ACL is not measured: the vendor's library here is cuDNN, on "
            "an H200 that runs our OpenCL. Beside another device it is ONNX Runtime on the CPU of "
            "the same machine; where the OpenCL device is that CPU (pocl), all of a network is "
            "left to `llvm`, by cost, and its times are of that. Detectors are timed with arrays "
            "in and out.",
        ),
        _beside_a_library(
            "Table 3",
            results,
            "gpu-cuda",
            "The paper's cuDNN is called by MXNet, ours by PyTorch in a CUDA graph; a Jetson Nano "
            "cannot run CUDA 13. Detectors are timed with arrays in and out, without cuDNN.",
        ),
        _vision(results),
        _tuning(results),
    ]


def speed_ups(results: Results) -> Mapping[str, Mapping[str, float]]:
    """Peer / ours by network of the paper: as it prints them, and as measured, by label."""
    found: dict[str, dict[str, float]] = {}
    for title, device in (("Table 1", "HD 505"), ("Table 2", "Mali T-860"), ("Table 3", "Nano")):
        rows = _PAPER.exhibits[title].rows
        found[f"paper, {device}"] = {row[0]: row[3] for row in rows if row[3]}
    for title in _PEERS:
        for each, peer, times in _measured(title, results):
            ratios = {
                _NAMES[network]: own["peer"] / own["tvm-edge"]
                for network, own in times.items()
                if {"peer", "tvm-edge"} <= own.keys() and network in _NAMES
            }
            if ratios and peer == _PEERS[title]:
                found.setdefault(f"here, {each.label} beside {peer}", {}).update(ratios)
    return found


def _measured(title: str, results: Results) -> list[tuple[Source, str, Times]]:
    """Contents of a table: by source the other runtime's name, and times."""
    peer = _PEERS[title]
    found: list[tuple[Source, str, Times]] = []
    if title == "Table 1":
        found += [(each, peer, _on_cpu(each)) for each in results.of("cpu")]
    elif title == "Table 2":
        on_cpu = "ONNX Runtime, CPU"
        found += [(each, on_cpu, _of_zoo(each)) for each in results.of("zoo", "opencl")]
    else:
        found += [(each, peer, _of_gpu(each)) for each in results.of("gpu", "cuda")]
        found += [(each, "ONNX Runtime, CPU", _of_zoo(each)) for each in results.of("zoo", "cuda")]
    found += [(each, peer, _quoted(each)) for each in results.quotes(f"icpp19 {title}")]
    return found


def _beside_a_library(title: str, results: Results, job: str, note: str) -> Exhibit:
    printed = _PAPER.exhibits[title]
    columns: dict[str, dict[str, Any]] = {}
    sources: list[Source] = []
    for each, name, times in _measured(title, results):
        own = {n: t for n, t in times.items() if n in _NAMES and "tvm-edge" in t}
        if not own:
            continue
        sources.append(each)
        left = _elsewhere(each)
        # Classifiers and detectors of one device may come from two sections.
        columns.setdefault(f"tvm-edge ({each.label}), ms", {}).update(
            (_NAMES[n], f"{cell(t['tvm-edge'])} on llvm" if n in left else t["tvm-edge"])
            for n, t in own.items()
        )
        peers = {_NAMES[n]: (t["peer"], t["tvm-edge"]) for n, t in own.items() if "peer" in t}
        if peers:
            columns.setdefault(f"{name}, ms", {}).update((n, t[0]) for n, t in peers.items())
            columns.setdefault(f"{name} / tvm-edge", {}).update(
                (n, ratio(*t)) for n, t in peers.items()
            )
    missing = [
        name
        for name in _PAPER.zoo
        if not any(name in column for title, column in columns.items() if "tvm-edge (" in title)
    ]
    notes = [note]
    if missing:
        notes.append(not_measured(", ".join(missing), job))
    return Exhibit(printed, [beside(printed, columns)], notes, sources)


def _elsewhere(source: Source) -> set[str]:
    """Networks that were left to the CPU."""
    if isinstance(source, Quoted) or source.kind != "zoo":
        return set()
    return {row["network"] for row in source.result["rows"] if source.is_elsewhere(row)}


def _quoted(quote: Quoted) -> Times:
    """Times of a section of the page."""
    found: dict[str, dict[str, float]] = {}
    for name in ("tvm-edge", "peer"):
        for network, ms in quote.milliseconds(name).items():
            found.setdefault(network, {})[name] = ms
    return found


def _on_cpu(measured: Measured) -> Times:
    """Times of :mod:`benchmarks.cpu.networks`; what was wrong counts as not measured."""
    names = {"tvm-edge": "tvm-edge", "openvino": "peer"}
    return {
        row["network"]: {
            names[runtime]: found["ms"]
            for runtime, found in row.get("runtimes", {}).items()
            if runtime in names and "ms" in found and found.get("right", True)
        }
        for row in measured.result["rows"]
    }


def _of_zoo(measured: Measured) -> Times:
    """Times of :mod:`benchmarks.models.zoo`: one target, and ONNX Runtime."""
    found: dict[str, dict[str, float]] = {}
    for row in measured.result["rows"]:
        if "ms" in row and row.get("right", True):
            runtime = "peer" if row["target"] == "onnxruntime" else "tvm-edge"
            found.setdefault(row["network"], {})[runtime] = row["ms"]
    return found


def _of_gpu(measured: Measured) -> Times:
    """Times of :mod:`benchmarks.gpu.networks`: CUDA's, of the device."""
    names = {"cuda": "tvm-edge", "cuDNN float32": "peer"}
    return {
        network: {
            names[key]: median(us) / 1e3 for key, us in row["us"].items() if us and key in names
        }
        for network, row in measured.result["networks"].items()
    }


def _vision(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 4"]
    quotes = results.quotes("icpp19 Table 4")
    tables = [Table(printed.columns, printed.cells), *map(quoted, quotes)]
    notes = [
        '"Before" here: one work-item for each segment, line or class; the paper does not say what '
        "its was. Its networks are trained, and how many boxes they suppress is not said; on its "
        "devices suppression took hundreds of milliseconds before.",
    ]
    if not quotes:
        notes.append(f"Naive operators: {NOT_MEASURED}; the study is at commit {_STUDY}.")
    return Exhibit(printed, tables, notes, quotes)


def _tuning(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 5"]
    rows = []
    measured = results.of("tuning")
    for each in measured:
        for network, found in each.result.items():
            us = {key: median(values) for key, values in found["us"].items()}
            before, after = (
                us[key] / 1e3 if key in us else None for key in ("heuristic", "records")
            )
            name = _NAMES.get(network, network)
            rows.append([name, each.label, before, after, ratio(before, after)])
    quotes = results.quotes("icpp19 Table 5")
    for quote in quotes:
        after = quote.milliseconds("after")
        for network, before in quote.milliseconds("before").items():
            times = (before, after[network])
            rows.append([_NAMES.get(network, network), quote.label, *times, ratio(*times)])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ["network", "tvm-edge on", "heuristic, ms", "tuned, ms", "heuristic / tuned"]
        tables.append(Table(titles, rows))
    notes = [
        "The paper's networks have a manual schedule before tuning, ours the heuristic's choice, "
        "which is good without it: the gain is meant to be small. Compare times with Tables 1 to 3."
    ]
    if not rows:
        notes.append(not_measured("Networks", "tuning-llvm"))
    return Exhibit(printed, tables, notes, [*measured, *quotes])
