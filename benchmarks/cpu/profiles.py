"""Times of a network's kernels in each runtime on the CPU, by the runtime's own profiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.common.correctness import load_inputs
from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.cpu.runtimes import openvino_model, tvm_edge_model

__all__ = ["Rows", "profile"]

_WARM_UP = 0.5  # seconds
_LEAST_RUNS, _MOST_RUNS = 5, 500
_MEANS = 5  # of OpenVINO's counters

Rows = list[tuple[list[str], float]]
"""Rows of a profile: the names of what a kernel computes, and its microseconds."""


def profile(runtime: str, name: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    """Profile a network in one runtime.

    Parameters
    ----------
    runtime, name : str
    threads, seconds : str
        As they come from a command line.
    folder : Path
        With what ``save`` and ``compile`` wrote.
    """
    profiler = {
        "tvm-edge": _profile_tvm_edge,
        "onnxruntime": _profile_onnxruntime,
        "openvino": _profile_openvino,
    }[runtime]
    return {"kernels": profiler(name, int(threads), float(seconds), folder)}


def _profile_tvm_edge(name: str, threads: int, seconds: float, folder: Path) -> Rows:
    inputs = load_inputs(name, folder)
    model = tvm_edge_model(name, folder, threads)
    begin = perf_counter()
    warm = _run_for(lambda: model.run(inputs), _WARM_UP)
    one = (perf_counter() - begin) / warm
    repeat = min(max(round(seconds / one), _LEAST_RUNS), _MOST_RUNS)
    profile = model.profile(inputs, repeat=repeat)
    return [(list(kernel.operators), kernel.time_us) for kernel in profile.kernels]


def _profile_onnxruntime(name: str, threads: int, seconds: float, folder: Path) -> Rows:
    inputs = load_inputs(name, folder)
    session = onnxruntime_session(folder / f"{name}.onnx", threads, profile=folder / "profile")
    warm = _run_for(lambda: session.run(None, inputs), _WARM_UP)
    _run_for(lambda: session.run(None, inputs), seconds)
    path = Path(session.end_profiling())
    durations: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            durations.setdefault(event["name"], []).append(event["dur"])
    path.unlink()
    return [([_node_name(event)], median(times[warm:])) for event, times in durations.items()]


def _node_name(event: str) -> str:
    """Name of a node or of its output in the ONNX model, without what ONNX Runtime adds.

    A convolution on its blocked layout is called by its output, a fused Gemm by its node.
    """
    return event.removesuffix("_kernel_time").removesuffix("_nchwc").removeprefix("fused ")


def _profile_openvino(name: str, threads: int, seconds: float, folder: Path) -> Rows:
    # Counters start again only with a model that is compiled again. Its nodes come in the same
    # order then, with other numbers in the names that OpenVINO makes up.
    means = [_openvino_means(name, threads, seconds / _MEANS, folder) for _ in range(_MEANS)]
    return [(rows[0][0], median(us for _, us in rows)) for rows in zip(*means, strict=True)]


def _openvino_means(name: str, threads: int, seconds: float, folder: Path) -> Rows:
    """Means of the counters, without the runs that warm up."""
    inputs = load_inputs(name, folder)
    model = openvino_model(name, folder, threads, profile=True)
    request = model.create_infer_request()

    def run() -> None:
        request.infer(inputs, share_inputs=True)

    warm = _run_for(run, _WARM_UP / _MEANS)
    before = _openvino_counters(request)
    runs = _run_for(run, seconds)
    after = _openvino_counters(request)
    layers = {
        operator.get_friendly_name(): str(operator.get_rt_info()["originalLayersNames"].value)
        for operator in model.get_runtime_model().get_ordered_ops()
    }
    return [
        (layers[node].split(","), max(after[node] * (warm + runs) - before[node] * warm, 0) / runs)
        for node in after
    ]


def _openvino_counters(request: Any) -> dict[str, float]:
    """Microseconds of each node that ran."""
    return {
        info.node_name: info.real_time.total_seconds() * 1e6
        for info in request.get_profiling_info()
        if info.status == info.EXECUTED
    }


def _run_for(run: Callable[[], Any], seconds: float) -> int:
    """Run for a time; how many runs it was."""
    begin, runs = perf_counter(), 0
    while runs < _LEAST_RUNS or (runs < _MOST_RUNS and perf_counter() - begin < seconds):
        run()
        runs += 1
    return runs
