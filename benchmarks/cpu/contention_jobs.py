"""Child processes of :mod:`benchmarks.cpu.contention`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    write_reference,
)
from benchmarks.common.onnx_runtime import Run, onnxruntime_function
from benchmarks.common.processes import Job
from benchmarks.cpu.converted_peers import convert
from benchmarks.cpu.runtimes import load_runtime

__all__ = ["JOBS", "PEERS", "RUNTIMES"]

PEERS = ("onnxruntime", "onnxruntime-sleeping", "openvino", "ncnn", "mnn")
"""Runtimes of other projects."""

_TIER = {"TVM_USE_RUNTIME_LIB": "1"}
RUNTIMES: Mapping[str, Mapping[str, str]] = {
    "tvm-edge": _TIER,
    "tvm-pool": {},
    **{peer: {} for peer in PEERS},
}
"""Environment of a process that runs a runtime."""

_WARM_UP = 0.5  # seconds
_CHANGES = 0.02  # seconds between two changes of the CPUs


def _compile(name: str, folder: Path) -> dict[str, Any]:
    path = folder / f"{name}.tvme"
    if not path.exists():
        import tvm_edge

        tvm_edge.compile(folder / f"{name}.onnx", "llvm", tuning_logs=False).export(path)
    return {}


def _save(name: str, folder: Path) -> dict[str, Any]:
    return {} if (folder / f"{name}.expected.npz").exists() else write_reference(name, folder)


def _load(runtime: str, name: str, threads: int, folder: Path) -> Run:
    if runtime == "tvm-pool":
        return _load_on_tvm_pool(folder / f"{name}.onnx", threads)
    if runtime == "onnxruntime-sleeping":
        return onnxruntime_function(folder / f"{name}.onnx", threads, spinning=False)
    return load_runtime(runtime, name, folder, threads)


def _load_on_tvm_pool(path: Path, threads: int) -> Run:
    """tvm-edge as it is, its kernels under TVM's own pool; for the rest of this process."""
    import tvm_ffi

    import tvm_edge
    from tvm_edge.compiler import build
    from tvm_edge.native import pool_counts

    # Code that is loaded from an artifact has our pool in any case.
    setattr(build, "kernels_on_pool", nullcontext)  # noqa: B010  mypy knows no such name
    model = tvm_edge.compile(path, "llvm", tuning_logs=False, num_threads=threads)
    configured = threading.local()
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]

    def run(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if not hasattr(configured, "done"):  # TVM has a pool for each thread
            # -3: workers that may roam, of which there are as many as CPUs are listed
            chosen = [cpus[number % len(cpus)] for number in range(threads)]
            tvm_ffi.get_global_func("runtime.config_threadpool")(-3, threads, chosen)
            configured.done = True
        results = model.run(inputs)
        assert not pool_counts()["launches"], "kernels were launched on tvm-edge's own pool"
        return results

    return run


def _time(
    runtime: str, name: str, threads: str, seconds: str, every_ms: str, folder: Path
) -> dict[str, Any]:
    """Time runs, one after another or one every so many milliseconds."""
    inputs = load_inputs(name, folder)
    run = _load(runtime, name, int(threads), folder)
    outputs = run(inputs)
    right = _is_right(outputs, name, folder)
    _repeat(lambda: run(inputs), _WARM_UP)
    every = float(every_ms) / 1e3
    samples, between, cpu, begin = [], 0.0, time.process_time(), perf_counter()
    while len(samples) < 5 or perf_counter() - begin < float(seconds):
        start = perf_counter()
        run(inputs)
        end = perf_counter()
        samples.append((end - start) * 1e3)
        if every:
            cpu_then = time.process_time()
            time.sleep(max(0.0, every - (end - start)))
            between += time.process_time() - cpu_then
    cpu, wall = time.process_time() - cpu, perf_counter() - begin
    p50, p90, p99 = (float(p) for p in np.percentile(samples, [50, 90, 99]))
    return {
        "median_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "cpu_ms": cpu / len(samples) * 1e3,
        "cpu_share": cpu / wall,
        "between_share": between / wall,
        "runs": len(samples),
        "right": right,
    }


def _callers(
    runtime: str, name: str, threads: str, seconds: str, callers: str, models: str, folder: Path
) -> dict[str, Any]:
    """Count runs of several threads that call one model, or each its own."""
    inputs = load_inputs(name, folder)
    runs = [_load(runtime, name, int(threads), folder) for _ in range(int(models))]
    right = all(_is_right(run(inputs), name, folder) for run in runs)
    counts, end = [0] * int(callers), 0.0

    def call(number: int) -> None:
        run = runs[number % len(runs)]
        while perf_counter() < end:
            run(inputs)
            counts[number] += 1

    for length in (_WARM_UP, float(seconds)):
        counts = [0] * int(callers)
        begin = perf_counter()
        end = begin + length
        started = [threading.Thread(target=call, args=(n,)) for n in range(int(callers))]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        took = perf_counter() - begin
    return {"runs_per_second": sum(counts) / took, "right": right}


def _endurance(name: str, threads: str, runs: str, folder: Path) -> dict[str, Any]:
    """Run tvm-edge while the CPUs that each thread may use change all the time."""
    inputs = load_inputs(name, folder)
    run = _load("tvm-edge", name, int(threads), folder)
    expected = run(inputs)
    allowed, stop = sorted(os.sched_getaffinity(0)), threading.Event()

    def change() -> None:
        random, own = np.random.default_rng(0), threading.get_native_id()
        while not stop.wait(_CHANGES):
            for task in os.listdir("/proc/self/task"):
                if int(task) != own:
                    chosen = random.choice(allowed, random.integers(1, len(allowed) + 1), False)
                    os.sched_setaffinity(int(task), [int(cpu) for cpu in chosen])

    thread = threading.Thread(target=change)
    thread.start()
    wrong, longest = 0, 0.0
    for _ in range(int(runs)):
        start = perf_counter()
        outputs = run(inputs)
        longest = max(longest, perf_counter() - start)
        wrong += any(not np.array_equal(outputs[key], expected[key]) for key in expected)
    stop.set()
    thread.join()
    return {"runs": int(runs), "wrong": wrong, "longest_ms": longest * 1e3}


def _is_right(outputs: Mapping[str, Any], name: str, folder: Path) -> bool:
    expected = load_expected(name, folder)
    return bool(compare_outputs(outputs, expected, folder / f"{name}.onnx")["right"])


def _repeat(run: Callable[[], Any], seconds: float) -> None:
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        run()


JOBS: Mapping[str, Job] = {
    "save": _save,
    "compile": _compile,
    "convert": convert,
    "time": _time,
    "callers": _callers,
    "endurance": _endurance,
}
