"""ICPP'19: Tables 1 to 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.papers.exhibits import NOT_MEASURED, Exhibit, Table, beside, cell, ratio
from benchmarks.papers.figures import papers
from benchmarks.papers.measured import Measured, Results

__all__ = ["exhibits", "speed_ups"]

_PAPER = papers()["icpp19"]
_NAMES = {ours: theirs for theirs, ours in _PAPER.zoo.items()}

Times = Mapping[str, Mapping[str, float]]
"""By network of the zoo, by runtime: milliseconds."""


def exhibits(results: Results) -> list[Exhibit]:
    """The tables, with what was measured for them."""
    return [
        _beside_a_library(
            "Table 1",
            [(each, _on_cpu(each)) for each in results.of("cpu")],
            "openvino",
            "OpenVINO",
            "The paper's OpenVINO and ours ran on different devices: there both runtimes are on "
            "Intel's GPU, here on a CPU. What can be compared is who is ahead of whom on one chip.",
        ),
        _beside_a_library(
            "Table 2",
            [(each, _of_zoo(each)) for each in results.of("zoo", "opencl")],
            "onnxruntime",
            "ONNX Runtime, CPU",
            "No Mali was reached, and ACL is not measured: the other runtime is ONNX Runtime on "
            "the CPU of the same machine. Where the OpenCL device is that CPU (pocl), all of a "
            "network is left to `llvm`, by cost, and its times are of that.",
        ),
        _beside_a_library(
            "Table 3",
            [(each, _of_gpu(each)) for each in results.of("gpu", "cuda")]
            + [(each, _of_zoo(each)) for each in results.of("zoo", "cuda")],
            "cuDNN float32",
            "cuDNN",
            "The paper's cuDNN is called by MXNet, ours by PyTorch in a CUDA graph; a Jetson Nano "
            "cannot run CUDA 13. Detectors are timed by `benchmarks.zoo`, with arrays in and out, "
            "which has no cuDNN.",
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
    for each, peer, times in (
        *((m, "openvino", _on_cpu(m)) for m in results.of("cpu")),
        *((m, "cuDNN float32", _of_gpu(m)) for m in results.of("gpu", "cuda")),
    ):
        ratios = {
            _NAMES[network]: own[peer] / own["tvm-edge"]
            for network, own in times.items()
            if {peer, "tvm-edge"} <= own.keys() and network in _NAMES
        }
        if ratios:
            found[f"here, {each.label}"] = ratios
    return found


def _beside_a_library(
    title: str, measured: Sequence[tuple[Measured, Times]], peer: str, name: str, note: str
) -> Exhibit:
    printed = _PAPER.exhibits[title]
    columns: dict[str, dict[str, Any]] = {}
    for each, times in measured:
        own = {n: t for n, t in times.items() if n in _NAMES and "tvm-edge" in t}
        if not own:
            continue
        left = _elsewhere(each)
        columns[f"tvm-edge ({each.label}), ms"] = {
            _NAMES[n]: f"{cell(t['tvm-edge'])} on llvm" if n in left else t["tvm-edge"]
            for n, t in own.items()
        }
        if any(peer in t for t in own.values()):
            columns[f"{name}, ms"] = {_NAMES[n]: t[peer] for n, t in own.items() if peer in t}
            columns[f"{name} / tvm-edge"] = {
                _NAMES[n]: ratio(t[peer], t["tvm-edge"]) for n, t in own.items() if peer in t
            }
    missing = [] if columns else [f"{NOT_MEASURED.capitalize()} on any machine."]
    return Exhibit(
        printed, [beside(printed, columns)], [note, *missing], [each for each, _ in measured]
    )


def _elsewhere(measured: Measured) -> set[str]:
    """Networks that were left to the CPU."""
    rows = measured.result["rows"] if measured.kind == "zoo" else ()
    return {row["network"] for row in rows if measured.is_elsewhere(row)}


def _on_cpu(measured: Measured) -> Times:
    """Of :mod:`benchmarks.cpu`; what was wrong counts as not measured."""
    return {
        row["network"]: {
            runtime: found["ms"]
            for runtime, found in row.get("runtimes", {}).items()
            if "ms" in found and found.get("right", True)
        }
        for row in measured.result["rows"]
    }


def _of_zoo(measured: Measured) -> Times:
    """Of :mod:`benchmarks.zoo`: one target, and ONNX Runtime."""
    found: dict[str, dict[str, float]] = {}
    for row in measured.result["rows"]:
        if "ms" in row and row.get("right", True):
            runtime = "onnxruntime" if row["target"] == "onnxruntime" else "tvm-edge"
            found.setdefault(row["network"], {})[runtime] = row["ms"]
    return found


def _of_gpu(measured: Measured) -> Times:
    """Of :mod:`benchmarks.gpu`: CUDA's, in device time."""
    names = {"cuda": "tvm-edge"}
    return {
        network: {names.get(key, key): median(us) / 1e3 for key, us in row["us"].items() if us}
        for network, row in measured.result["networks"].items()
    }


def _vision(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 4"]
    networks, operators = [], []
    sources = results.of("vision")
    for each in sources:
        found = each.result.get("detection", {})
        for name, variants in found.get("networks", {}).items():
            for target in dict.fromkeys(variant.split()[1] for variant in variants):
                before = _host_ms(variants.get(f"naive {target}", ()))
                after = _host_ms(variants.get(f"own {target}", ()))
                where = _where(each, target)
                networks.append([_NAMES[name], where, before, after, ratio(before, after)])
        for name, variants in found.get("naive", {}).items():
            for target, (only,) in variants.items():
                before = _us(only)
                after = _event_us(found["workloads"].get(name, {}).get(target, ()))
                where = _where(each, target)
                operators.append([name, where, before, after, ratio(before, after)])
    tables = [Table(printed.columns, printed.cells)]
    titles = ("before", "after", "before / after")
    if networks:
        tables.append(Table(["network", "tvm-edge on", *(f"{t}, ms" for t in titles)], networks))
    if operators:
        units = [f"{title}, µs" for title in titles[:2]]
        tables.append(Table(["operator", "tvm-edge on", *units, titles[2]], operators))
    notes = [
        '"Before" here: one work-item for each segment, line or class (`benchmarks/vision_naive.py`'
        "); the paper does not say what its was. Its networks are trained, and how many boxes they "
        "suppress is not said.",
    ]
    if not networks:
        notes.append("Whole networks: not measured.")
    return Exhibit(printed, tables, notes, sources)


def _where(measured: Measured, target: str) -> str:
    device = measured.machine.get("devices", {}).get(target, {})
    return f"{target}, {device.get('name', measured.machine['cpu'])}"


def _host_ms(found: Sequence[Mapping[str, Any]]) -> float | None:
    times = [r["host_us"] / 1e3 for r in found if r.get("right") and "host_us" in r]
    return median(times) if times else None


def _us(found: Mapping[str, Any]) -> float | None:
    if not found.get("right"):
        return None
    us: float | None = found.get("event_us", found.get("kernel_us"))
    return us


def _event_us(found: Sequence[Mapping[str, Any]]) -> float | None:
    times = [r["event_us"] for r in found if r.get("right") and "event_us" in r]
    return median(times) if times else None


def _tuning(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 5"]
    rows = []
    sources = results.of("tuning")
    for each in sources:
        for network, found in each.result.items():
            us = {key: median(values) for key, values in found["us"].items()}
            before, after = (
                us[key] / 1e3 if key in us else None for key in ("heuristic", "records")
            )
            name = _NAMES.get(network, network)
            rows.append([name, each.label, before, after, ratio(before, after)])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ["network", "tvm-edge on", "heuristic, ms", "tuned, ms", "heuristic / tuned"]
        tables.append(Table(titles, rows))
    notes = [
        "The paper's networks have a manual schedule before tuning, ours the heuristic's choice, "
        "which is good without it: the gain is meant to be small. Compare times with Tables 1 to 3."
    ]
    if not rows:
        notes.append("Not measured.")
    return Exhibit(printed, tables, notes, sources)
