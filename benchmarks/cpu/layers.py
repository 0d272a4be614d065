"""Layers on the CPU as they run in their networks, beside ONNX Runtime and OpenVINO.

Every runtime's own profiler, in a process of its own, in turns: weights are as cold as they are in
life. Microseconds are of one layer: the median of the runs of a process, then of the processes,
then the mean over the layers of equal shape (``n`` of them). OpenVINO counts means, in whole
microseconds: there it is the median of five means of a fifth of the time each.

- A layer's time is that of all kernels that compute its node, or the bias, batch normalisation or
  activation that follows it alone. A runtime may fuse a residual addition as well; it is not
  subtracted. A kernel of several layers is shared out by their arithmetic (``†``). Changes of
  layout that are kernels of their own are in ``elsewhere``, with pooling and the rest.
- GFLOP/s count the definition's multiply-adds as two operations each, padding included. An
  algorithm that needs fewer, such as Winograd's, may exceed 100 % of the peak.
- GB/s of dense layers count data, weights and output once. Weights that stay in a large cache from
  one run to the next may exceed 100 % of the bandwidth of memory.
- Peaks (:mod:`benchmarks.cpu.peaks`) are measured in every round; percentages are of the best.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.common.correctness import write_reference
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import met, spread
from benchmarks.cpu.peaks import build_peaks, measure_peaks
from benchmarks.cpu.profiles import Rows, profile
from benchmarks.cpu.runtimes import (
    ENVIRONMENT,
    RUNTIMES,
    compile_network,
)
from benchmarks.cpu.workloads import LAYER_NETWORKS, Workload, layer_workloads

BARS = {
    "resnet50_convolutions": 0.9,  # of the FMA peak
    "depthwise": 2.0,  # times ONNX Runtime's speed
    "dense": 0.8,  # of the read bandwidth
}

# A layer's own time includes these where they follow it and nothing else reads its output.
_EPILOGUE = frozenset({"BatchNormalization", "Relu", "Clip", "LeakyRelu"})


# ------------------------------------------------------------------ from kernels to layers


def _aliases(graph: Any, nodes: Iterable[str]) -> dict[str, str]:
    """Names under which a runtime may show a layer → the layer's node."""
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    layers, names = set(nodes), {}
    for node in graph.node:
        if node.name not in layers:
            continue
        layer, chain = node.name, node
        while True:
            names[chain.name] = names[chain.output[0]] = layer
            following = readers.get(chain.output[0], [])
            if len(following) != 1 or following[0].op_type not in _EPILOGUE:
                break
            chain = following[0]
    return names


def _layer_times(
    rows: Rows, aliases: Mapping[str, str], flops: Mapping[str, int]
) -> tuple[dict[str, float], float, set[str]]:
    """Microseconds of each layer, of all else, and the layers that share a kernel.

    Raises
    ------
    LookupError
        A layer that no kernel computes, as far as names tell.
    """
    times: dict[str, float] = {}
    elsewhere, shared = 0.0, set()
    for names, microseconds in rows:
        layers = dict.fromkeys(aliases[name] for name in names if name in aliases)
        if not layers:
            elsewhere += microseconds
        if len(layers) > 1:
            shared |= set(layers)
        whole = sum(flops[layer] for layer in layers)
        for layer in layers:
            times[layer] = times.get(layer, 0.0) + microseconds * flops[layer] / whole
    missing = [layer for layer in flops if layer not in times]
    if missing:
        raise LookupError(f"no kernel bears the name of {missing}, only {[n for n, _ in rows]}")
    return times, elsewhere, shared


# ------------------------------------------------------------------ the parent


def _measure(
    name: str, options: argparse.Namespace, peaks: Callable[[], None], folder: Path
) -> dict[str, Any]:
    """The layers of a network in all runtimes."""
    import onnx

    saved = run_child(__name__, "save", name, folder)
    if "failed" in saved:
        return {"network": name, **saved}
    model = onnx.load(folder / f"{name}.onnx", load_external_data=False)
    workloads = layer_workloads(model)
    flops = {node: workload.flops for workload, nodes in workloads.items() for node in nodes}
    aliases = _aliases(model.graph, flops)
    runtimes: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in options.runtimes}
    failures: dict[str, str] = {}
    if "tvm-edge" in runtimes:
        how = ("heuristic", "llvm", options.threads, "float32")
        compiled = run_child(__name__, "compile", name, *how, folder)
        if "failed" in compiled:
            failures["tvm-edge"] = compiled["failed"]
    for _ in range(options.rounds):
        peaks()
        for runtime, results in runtimes.items():
            if runtime in failures:
                continue
            environment = ENVIRONMENT.get(runtime, {})
            arguments = (runtime, name, options.threads, options.seconds, folder)
            result = run_child(__name__, "profile", *arguments, **environment)
            if "failed" in result:
                failures[runtime] = result["failed"]
                continue
            try:
                times, elsewhere, shared = _layer_times(result["kernels"], aliases, flops)
            except LookupError as err:  # the others' results are of use without this one's
                failures[runtime] = str(err)
                continue
            results.append({"times": times, "elsewhere": elsewhere, "shared": sorted(shared)})
    good = {r: results for r, results in runtimes.items() if r not in failures}
    return {
        "network": name,
        "failures": failures,
        "elsewhere_us": {r: median(p["elsewhere"] for p in good[r]) for r in good},
        "workloads": [
            _workload_row(workload, nodes, good) for workload, nodes in workloads.items()
        ],
    }


def _workload_row(
    workload: Workload, nodes: Sequence[str], runtimes: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    microseconds, ranges = {}, {}
    for runtime, processes in runtimes.items():
        rounds = [sum(p["times"][node] for node in nodes) / len(nodes) for p in processes]
        medians = [median(p["times"][node] for p in processes) for node in nodes]
        microseconds[runtime] = sum(medians) / len(nodes)
        ranges[runtime] = [min(rounds), max(rounds)]
    return {
        "workload": str(workload),
        **asdict(workload),
        "flops": workload.flops,
        "bytes": workload.bytes,
        "nodes": list(nodes),
        "us": microseconds,
        "us_range": ranges,
        "shared": sorted({n for p in runtimes.values() for r in p for n in r["shared"]} & {*nodes}),
    }


def _rate(row: Mapping[str, Any], peaks: Mapping[str, float]) -> tuple[str, float, float]:
    """Rate of a layer: its unit, the rate, and its part of the peak that limits it."""
    if row["kind"] == "dense":
        rate = row["bytes"] / row["us"]["tvm-edge"] / 1e3
        return "GB/s", rate, rate / peaks["read_gbs"]
    rate = row["flops"] / row["us"]["tvm-edge"] / 1e3
    return "GFLOP/s", rate, rate / peaks["fma_gflops"]


def _markdown(network: Mapping[str, Any], peaks: Mapping[str, float]) -> str:
    """A line per workload of a network."""
    if "failed" in network:
        return f"### {network['network']}\n\n**{network['failed']}**"
    lines = [
        f"### {network['network']}",
        "",
        "| kind | layer | n | tvm-edge, µs | ONNX Runtime, µs | OpenVINO, µs | ONNX Runtime / ours "
        "| OpenVINO / ours | ours | of peak |",
        "|" + "---|" * 10,
    ]
    lines += [_line(row, peaks) for row in network["workloads"]]
    sums = {r: _sum(network["workloads"], r) for r in network["elsewhere_us"]}
    for label, values in (("all layers", sums), ("elsewhere", network["elsewhere_us"])):
        lines.append(f"| | {label} | | {_microseconds(values)} | | | | |")
    lines += [f"\n{runtime}: **{reason}**" for runtime, reason in network["failures"].items()]
    return "\n".join(lines)


def _line(row: Mapping[str, Any], peaks: Mapping[str, float]) -> str:
    us = row["us"]
    mark = " †" if row["shared"] else ""
    cells = [row["kind"], row["workload"] + mark, str(len(row["nodes"])), _microseconds(us)]
    if "tvm-edge" in us:
        cells += [f"{us[r] / us['tvm-edge']:.2f}" if r in us else "–" for r in RUNTIMES[1:]]
        unit, rate, part = _rate(row, peaks)
        # Depthwise convolutions do too little with each number to come near either peak.
        bounded = row["kind"] in ("convolution", "dense")
        cells += [f"{rate:.3g} {unit}", f"{part:.0%}" if bounded else ""]
    else:
        cells += ["–"] * 4
    return f"| {' | '.join(cells)} |"


def _microseconds(values: Mapping[str, float]) -> str:
    """Three cells."""
    return " | ".join(f"{values[r]:,.0f}" if r in values else "–" for r in RUNTIMES)


def _sum(rows: Iterable[Mapping[str, Any]], runtime: str) -> float:
    return sum(row["us"][runtime] * len(row["nodes"]) for row in rows)


def _summarise(
    networks: Sequence[Mapping[str, Any]], peaks: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Figures that the bars are about."""
    ours = [
        {"network": network["network"], **row}
        for network in networks
        for row in network.get("workloads", ())
        if "tvm-edge" in row["us"]
    ]
    summary: dict[str, dict[str, Any]] = {}
    resnet = [r for r in ours if r["network"] == "resnet50_v1" and r["kind"] == "convolution"]
    if resnet:
        work = sum(r["flops"] * len(r["nodes"]) for r in resnet)
        overall = work / _sum(resnet, "tvm-edge") / 1e3 / peaks["fma_gflops"]
        summary["resnet50_convolutions"] = {
            **_worst({r["workload"]: _rate(r, peaks)[2] for r in resnet}, "resnet50_convolutions"),
            "overall": overall,
        }
    depthwise = {
        f"{r['network']} {r['workload']}": r["us"]["onnxruntime"] / r["us"]["tvm-edge"]
        for r in ours
        if r["kind"] == "depthwise" and "onnxruntime" in r["us"]
    }
    if depthwise:
        summary["depthwise"] = _worst(depthwise, "depthwise")
    dense = {
        f"{r['network']} {r['workload']}": _rate(r, peaks)[2] for r in ours if r["kind"] == "dense"
    }
    if dense:
        summary["dense"] = _worst(dense, "dense")
    return summary


def _worst(values: Mapping[str, float], bar: str) -> dict[str, Any]:
    worst = min(values, key=lambda name: values[name])
    return {
        "workloads": len(values),
        "reach_the_bar": sum(value >= BARS[bar] for value in values.values()),
        "geomean": geometric_mean(values.values()),
        "worst": values[worst],
        "worst_workload": worst,
        "bar": BARS[bar],
    }


def _verdict(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """The summary in words."""
    lines = []
    if "resnet50_convolutions" in summary:
        found = summary["resnet50_convolutions"]
        lines.append(
            f"- dense convolutions of resnet50_v1: **{found['overall']:.0%}** of the FMA peak over "
            f"all of them, geometric mean {found['geomean']:.0%}, {_tail(found, '{:.0%}')}"
        )
    if "depthwise" in summary:
        found = summary["depthwise"]
        lines.append(
            f"- depthwise convolutions: **{found['geomean']:.2f}** times ONNX Runtime's speed, "
            f"geometric mean, {_tail(found, '{:.2f}')}"
        )
    if "dense" in summary:
        found = summary["dense"]
        lines.append(
            f"- dense layers: **{found['geomean']:.0%}** of the read bandwidth, geometric mean, "
            f"{_tail(found, '{:.0%}')}"
        )
    return "\n".join(lines)


def _tail(found: Mapping[str, Any], form: str) -> str:
    verdict = met(found["worst"] >= found["bar"])
    return (
        f"worst {form.format(found['worst'])} ({found['worst_workload']}); bar >= "
        f"{form.format(found['bar'])}: {verdict}, by {found['reach_the_bar']} of "
        f"{found['workloads']} workloads"
    )


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("cpu_layers", __doc__)
    parser.shared(networks=LAYER_NETWORKS, runtimes=Among(RUNTIMES, RUNTIMES))
    parser.shared(rounds=5, seconds=3.0, threads=2, json=None)
    options = parser.parse_args(arguments)
    options.runtimes = [r for r in RUNTIMES if r in options.runtimes]
    networks: list[dict[str, Any]] = []
    measured: dict[int, list[dict[str, float]]] = {n: [] for n in sorted({1, options.threads})}
    with tempfile.TemporaryDirectory(prefix="tvm-edge-cpu-") as base:
        program = build_peaks(base)

        def peaks() -> None:
            for threads, results in measured.items():
                results.append(measure_peaks(program, threads))

        for name in options.networks:
            with tempfile.TemporaryDirectory(dir=base) as folder:
                networks.append(_measure(name, options, peaks, Path(folder)))
            print(f"{name}: done", file=sys.stderr, flush=True)
    all_threads = measured[options.threads]
    best = {peak: max(r[peak] for r in all_threads) for peak in ("fma_gflops", "read_gbs")}
    summary = _summarise(networks, best)
    machine = describe_machine()
    print(json.dumps(machine, indent=2))
    for threads, results in measured.items():
        print(
            f"{threads} threads: FMA {spread([r['fma_gflops'] for r in results])} GFLOP/s, "
            f"read {spread([r['read_gbs'] for r in results])} GB/s"
        )
    scaling = best["fma_gflops"] / options.threads / max(r["fma_gflops"] for r in measured[1])
    print(
        f"Multiply-adds a thread, {options.threads} threads to one: {scaling:.0%}; "
        "much below 100 %, other work took a part of the cores and the peaks are too low."
    )
    for network in networks:
        print(f"\n{_markdown(network, best)}")
    print(f"\n{_verdict(summary)}")
    content = {
        "machine": machine,
        "threads": options.threads,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "peaks": measured,
        "best_peaks": best,
        "summary": summary,
        "networks": networks,
    }
    save_json(options.json, content)


JOBS: dict[str, Job] = {
    "save": write_reference,
    "compile": compile_network,
    "profile": profile,
}
