"""Processes of :mod:`benchmarks.vision.sorting`: each holds one runtime.

Runtimes of the CPU: ``tvm-edge``, ``numpy``, ``onnxruntime``. On the machine with CUDA: ``cuda``
and ``opencl`` are tvm-edge's, ``torch``, ``stock`` TVM, ``cub``. Every result is checked after it
was timed. Times are in microseconds:

- ``host_us``: a call and a synchronisation, median; on a GPU from and to its memory.
- ``device_us`` (CPU, tvm-edge): kernels and what the virtual machine does between them, with the
  input in place.
- ``event_us``: by the device's events around `CALLS` calls without a synchronisation.
- ``kernel_us`` (cuda, opencl): the same of the compiled function alone, without virtual machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.common.processes import Job
from benchmarks.common.timing import CALLS, EVENT_ROUNDS, evaluate, host_us, machine_us, torch_us
from benchmarks.vision.sorting_models import (
    build_cub,
    compile_stock,
    compile_workload,
    path_of,
    save_onnx,
    words_of,
)
from benchmarks.vision.workloads import Workload, find_workload

__all__ = [
    "CPU_RUNTIMES",
    "GPU_RUNTIMES",
    "JOBS",
    "environment_of",
    "has_runtime",
]

_LEAST_RUNS, _MOST_RUNS = 5, 5000

_ALL = frozenset({"argsort", "segmented_argsort", "top_k", "cumsum"})
CPU_RUNTIMES: Mapping[str, frozenset[str]] = {
    "tvm-edge": _ALL,
    "numpy": _ALL,
    "onnxruntime": _ALL - {"segmented_argsort"},
}
"""Operators that each computes."""

GPU_RUNTIMES: Mapping[str, frozenset[str]] = {
    "cuda": _ALL,
    "opencl": _ALL,
    "torch": _ALL - {"segmented_argsort"},
    "stock": frozenset({"argsort", "cumsum"}),
    "cub": frozenset({"segmented_argsort"}),
}
"""Operators that each computes."""

Result = dict[str, Any]


def has_runtime(workload: Workload, runtimes: Mapping[str, frozenset[str]]) -> list[str]:
    """The runtimes that compute a workload."""
    return [runtime for runtime, operators in runtimes.items() if workload.operator in operators]


def environment_of(runtime: str) -> Mapping[str, str]:
    """Environment of a process on the machine with CUDA."""
    return {"TVM_EDGE_OPENCL": "nvidia"} if runtime == "opencl" else {}


# --------------------------------------------------------------------------------------- timing


def _check(workload: Workload, outputs: Mapping[str, np.ndarray]) -> Result:
    """Compare a model's outputs."""
    if workload.operator == "top_k":
        return workload.check(outputs["indices"], outputs["values"])
    if "indices" in outputs:  # ONNX's TopK of all
        return workload.check(outputs["indices"])
    (only,) = outputs.values()
    return workload.check(values=only) if workload.operator == "cumsum" else workload.check(only)


def _time_cpu(runtime: str, name: str, threads: str, seconds: str, folder: Path) -> Result:
    """A job: time one workload, from NumPy arrays to NumPy arrays."""
    workload, limit = find_workload(name), float(seconds)
    inputs = workload.inputs
    if runtime == "numpy":
        return _time_numpy(workload, limit)
    if runtime == "onnxruntime":
        session = onnxruntime_session(path_of(workload.name, "onnx", folder), int(threads))
        names = [output.name for output in session.get_outputs()]
        host = host_us(lambda: session.run(names, inputs), limit)
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        return {"host_us": host, **_check(workload, outputs)}
    import tvm_edge

    model = tvm_edge.load(path_of(workload.name, "llvm.tvme", folder), num_threads=int(threads))
    host = host_us(lambda: model.run(inputs), limit)
    repeat = int(min(max(limit * 1e6 / host, _LEAST_RUNS), _MOST_RUNS))
    device = model.benchmark(inputs, repeat=repeat).device.median * 1e3
    return {"host_us": host, "device_us": device, **_check(workload, model.run(inputs))}


def _time_numpy(workload: Workload, seconds: float) -> Result:
    """One thread. The segment of each element is known before the clock starts."""
    data, axis = workload.data, workload.axis
    if workload.operator == "cumsum":
        host = host_us(lambda: np.cumsum(data, axis=axis), seconds)
        return {"host_us": host, **workload.check(values=np.cumsum(data, axis=axis))}
    if workload.lengths:
        segment = workload.segment_of
        host = host_us(lambda: np.lexsort((data, segment)), seconds)
        return {"host_us": host, **workload.check(np.lexsort((data, segment)))}

    def top_k() -> tuple[np.ndarray, np.ndarray]:
        indices = np.argsort(-data, axis=axis, kind="stable")[..., : workload.k]
        return indices, np.take_along_axis(data, indices, axis)

    if workload.operator == "top_k":
        return {"host_us": host_us(top_k, seconds), **workload.check(*top_k())}
    host = host_us(lambda: np.argsort(data, axis=axis, kind="stable"), seconds)
    return {"host_us": host, **workload.check(np.argsort(data, axis=axis, kind="stable"))}


def _copy(elements: str, threads: str, seconds: str, folder: Path) -> Result:
    """A job: copy an array of float32 with every thread a part, as fast as ``memcpy`` can."""
    count = int(elements)
    source, target = np.ones(count, "float32"), np.empty(count, "float32")
    edges = np.linspace(0, count, int(threads) + 1).astype(int)
    parts = [slice(a, b) for a, b in pairwise(edges)]

    def one(part: slice) -> None:
        np.copyto(target[part], source[part])  # without Python's lock

    with ThreadPoolExecutor(len(parts)) as pool:
        host = host_us(lambda: list(pool.map(one, parts)), float(seconds))
    return {"host_us": host, "gbs": 2 * source.nbytes / host / 1e3}


# ------------------------------------------------------------------------------------------- GPU


def _time_gpu(runtime: str, seconds: str, folder: Path) -> Result:
    """A job: time the workloads that ``workloads.json`` names."""
    timer: dict[str, Callable[[Workload, float, Path], Result]] = {
        "cuda": lambda *args: _time_tvm_edge("cuda", *args),
        "opencl": lambda *args: _time_tvm_edge("opencl", *args),
        "torch": _time_torch,
        "stock": _time_stock,
        "cub": _time_cub,
    }
    results: dict[str, Result] = {}
    for name in json.loads((folder / "workloads.json").read_text()):
        workload = find_workload(name)
        if workload.operator not in GPU_RUNTIMES[runtime]:
            continue
        try:
            results[name] = timer[runtime](workload, float(seconds), folder)
        except Exception as err:  # a runtime's: of any type; the other workloads go on
            results[name] = {"failed": words_of(err)}
    return {"results": results}


def _time_tvm_edge(target: str, workload: Workload, seconds: float, folder: Path) -> Result:
    """Time model and kernel, those that compiled."""
    import tvm

    device = tvm.device(target, 0)
    inputs = {name: tvm.runtime.tensor(a, device) for name, a in workload.inputs.items()}
    found = []
    if path_of(workload.name, f"{target}.tvme", folder).exists():
        found.append(_time_model(target, workload, inputs, seconds, folder))
    if path_of(workload.name, f"{target}.json", folder).exists():
        found.append(_time_kernel(target, workload, inputs, folder))
    if not found:
        return {"failed": "neither model nor kernel compiled"}
    result = {key: value for part in found for key, value in part.items()}
    result["right"] = all(part["right"] for part in found)
    result["error"] = max(part["error"] for part in found)
    return result


def _time_model(
    target: str, workload: Workload, inputs: Mapping[str, Any], seconds: float, folder: Path
) -> Result:
    """The artifact that `_compile_model` made."""
    import tvm

    import tvm_edge

    device = tvm.device(target, 0)
    path = path_of(workload.name, f"{target}.tvme", folder)
    model = tvm_edge.load(path)

    def run() -> None:
        model.run(inputs, device_outputs=True)
        device.sync()

    result = {"host_us": host_us(run, seconds), **_check(workload, model.run(inputs))}
    result["event_us"] = machine_us(path, target, inputs)
    return result


def _time_kernel(
    target: str, workload: Workload, inputs: Mapping[str, Any], folder: Path
) -> Result:
    """The function that `_compile_kernel` made."""
    import tvm

    device = tvm.device(target, 0)
    _, outputs = json.loads(path_of(workload.name, f"{target}.json", folder).read_text())
    flat = [tensor._create_view((math.prod(tensor.shape),)) for tensor in inputs.values()]
    made = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in outputs]
    module = tvm.runtime.load_module(str(path_of(workload.name, f"{target}.so", folder)))
    evaluator = module.time_evaluator("kernel", device, number=CALLS, repeat=EVENT_ROUNDS)
    microseconds = evaluate(evaluator, *flat, *made)
    names = {"top_k": ("indices", "values"), "cumsum": ("values",)}
    found = zip(names.get(workload.operator, ("indices",)), made, strict=False)
    checked = workload.check(**{name: tensor.numpy() for name, tensor in found})
    return {"kernel_us": microseconds, **checked}


def _time_stock(workload: Workload, seconds: float, folder: Path) -> Result:
    import tvm
    from tvm.runtime.vm import VirtualMachine

    device = tvm.device("cuda", 0)
    data = tvm.runtime.tensor(workload.data, device)
    module = tvm.runtime.load_module(str(path_of(workload.name, "stock.so", folder)))
    machine = VirtualMachine(module, device)
    main = machine["main"]

    def run() -> None:
        main(data)
        device.sync()

    host = host_us(run, seconds)
    evaluator = machine.time_evaluator("main", device, number=CALLS, repeat=EVENT_ROUNDS)
    checked = _check(workload, {"only": main(data).numpy()})
    return {"host_us": host, "event_us": evaluate(evaluator, data), **checked}


def _time_torch(workload: Workload, seconds: float, _folder: Path) -> Result:
    """Its indices are int64. Its top-k promises no order of equal elements: values are checked."""
    import torch

    data, axis = torch.from_numpy(workload.data).cuda(), workload.axis
    calls: dict[str, Callable[[], Any]] = {
        "argsort": lambda: torch.sort(data, dim=axis, stable=True),
        "top_k": lambda: torch.topk(data, workload.k, dim=axis),
        "cumsum": lambda: torch.cumsum(data, axis),
    }
    call = calls[workload.operator]

    def run() -> None:
        call()
        torch.cuda.synchronize()

    result: Result = {"host_us": host_us(run, seconds), "event_us": torch_us(call)}
    found = call()
    if workload.operator == "argsort":
        return result | workload.check(found.indices.cpu().numpy())
    values = found.values if workload.operator == "top_k" else found
    return result | workload.check(values=values.cpu().numpy())


def _time_cub(workload: Workload, seconds: float, folder: Path) -> Result:
    keys, offsets, found = (folder / name for name in ("keys", "offsets", "sorted"))
    workload.data.tofile(keys)
    workload.offsets.tofile(offsets)
    program = [str(folder / "cub_segmented_sort"), str(keys), str(offsets), str(found)]
    how = [str(CALLS), str(EVENT_ROUNDS), str(seconds)]
    done = subprocess.run([*program, *how], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    result: Result = json.loads(done.stdout)
    result["event_us"] = median(result["event_us"])
    return result | workload.check(np.fromfile(found, "int32"))


# --------------------------------------------------------------------------------------- machine


def _describe(device: str, _folder: Path) -> Result:
    """A job: the machine, with the GPU and its peers' versions."""
    from benchmarks.common.machine import describe_machine

    machine = describe_machine()
    if device != "cuda":
        return machine
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    machine["gpu"] = found.splitlines()[0]
    compiler = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"release ([\d.]+)", compiler.stdout)
    machine["versions"]["nvcc"] = release[1] if release else "unknown"
    for package in ("torch", "torchvision"):
        try:
            machine["versions"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            machine["versions"][package] = "not installed"
    return machine


JOBS: dict[str, Job] = {
    "build_cub": build_cub,
    "compile": compile_workload,
    "compile_stock": compile_stock,
    "copy": _copy,
    "describe": _describe,
    "save_onnx": save_onnx,
    "time_cpu": _time_cpu,
    "time_gpu": _time_gpu,
}
