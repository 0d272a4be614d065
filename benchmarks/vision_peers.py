"""What the processes of :mod:`benchmarks.vision` do: each holds one runtime.

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

import json
import math
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.processes import Job, is_child, serve
from benchmarks.vision_workloads import Workload, find_workload

__all__ = ["CALLS", "CPU_RUNTIMES", "GPU_RUNTIMES", "MODULE", "has_runtime"]

MODULE = "benchmarks.vision_peers"
CALLS = 100
"""Between two events."""

_COMPILE_SECONDS = 90  # after which the process is ended, by signal 14
_EVENT_ROUNDS = 5  # the median of which is a process's figure
_WARM_UP = 0.2  # seconds
_LEAST_RUNS, _MOST_RUNS = 5, 5000
_CUB_SOURCE = Path(__file__).with_name("cub_segmented_sort.cu")

_ALL = frozenset({"argsort", "segmented_argsort", "top_k", "cumsum"})
CPU_RUNTIMES: Mapping[str, frozenset[str]] = {
    "tvm-edge": _ALL,
    "numpy": _ALL,
    "onnxruntime": _ALL - {"segmented_argsort"},
}
"""Which operators each computes."""

GPU_RUNTIMES: Mapping[str, frozenset[str]] = {
    "cuda": _ALL,
    "opencl": _ALL,
    "torch": _ALL - {"segmented_argsort"},
    "stock": frozenset({"argsort", "cumsum"}),
    "cub": frozenset({"segmented_argsort"}),
}
"""Which operators each computes."""

Result = dict[str, Any]


def has_runtime(workload: Workload, runtimes: Mapping[str, frozenset[str]]) -> list[str]:
    """The runtimes that compute a workload."""
    return [runtime for runtime, operators in runtimes.items() if workload.operator in operators]


def _file(workload: Workload, end: str, folder: Path) -> Path:
    name = re.sub(r"[^\w=]+", "_", workload.name)
    return folder / f"{name}.{end}"


# ------------------------------------------------------------------------------ models and kernels


def _onnx_model(workload: Workload, folder: Path) -> Path:
    """One node. An argsort is a TopK of all, the smallest first."""
    from onnx import TensorProto, helper, numpy_helper, save

    path = _file(workload, "onnx", folder)
    if path.exists():
        return path
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, workload.shape)
    if workload.operator == "cumsum":
        node = helper.make_node("CumSum", ["data", "constant"], ["values"])
        constant = np.array(workload.axis, "int64")
        outputs = [helper.make_tensor_value_info("values", TensorProto.FLOAT, workload.shape)]
    else:
        top_k = workload.operator == "top_k"
        k = workload.k if top_k else workload.shape[-1]
        node = helper.make_node(
            "TopK", ["data", "constant"], ["values", "indices"], largest=int(top_k)
        )
        constant = np.array([k], "int64")
        shape = [*workload.shape[:-1], k]
        outputs = [
            helper.make_tensor_value_info("values", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("indices", TensorProto.INT64, shape),
        ]
    graph = helper.make_graph(
        [node], "one_node", [data], outputs, [numpy_helper.from_array(constant, "constant")]
    )
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def _relax_module(workload: Workload) -> Any:
    """One call."""
    from tvm import relax

    from tvm_edge.ops import segmented_argsort

    types = {name: relax.TensorType(a.shape, str(a.dtype)) for name, a in workload.inputs.items()}
    params = [relax.Var(name, ty) for name, ty in types.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            if workload.operator == "argsort":
                call = relax.op.argsort(params[0], axis=workload.axis, dtype="int32")
            elif workload.operator == "cumsum":
                call = relax.op.cumsum(params[0], axis=workload.axis)
            else:
                call = segmented_argsort(*params)
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get()


def _kernel(workload: Workload, spec: Any) -> Any:
    """The GPU kernel of a workload."""
    from tvm_edge.schedules.vision import gpu

    dtype = str(workload.data.dtype)
    if workload.operator == "segmented_argsort":
        sizes = (workload.elements, len(workload.offsets))
        how: dict[str, Any] = {"descending": False, "index_dtype": "int32"}
        return gpu.argsort_segments(*sizes, dtype, "int32", spec, **how)
    axis = workload.axis % len(workload.shape)
    before, length = math.prod(workload.shape[:axis]), workload.shape[axis]
    if workload.operator == "cumsum":
        sizes3 = (before, length, math.prod(workload.shape[axis + 1 :]))
        how = {"operator": "add", "exclusive": False, "reverse": False}
        return gpu.scan_lines(*sizes3, dtype, dtype, spec, **how)
    if workload.operator == "top_k":
        how = {"largest": True, "index_dtype": "int64"}
        return gpu.top_k_rows(before, length, workload.k, dtype, spec, **how)
    how = {"descending": False, "index_dtype": "int32"}
    return gpu.argsort_rows(before, length, dtype, spec, **how)


def _compile(target: str, name: str, folder: Path) -> Result:
    """A job: compile a workload with tvm-edge, and for a GPU the kernel by itself as well."""
    signal.alarm(_COMPILE_SECONDS)
    workload = find_workload(name)
    if target == "llvm":
        return _compile_model(target, workload, folder)
    # Each of the two that fails costs its own figures, not the other's.
    result: Result = {}
    for what, compiler in {"model": _compile_model, "kernel": _compile_kernel}.items():
        try:
            result |= compiler(target, workload, folder)
        except Exception as err:  # a compiler's: of any type
            result[f"{what}_failed"] = _words(err)
    return result


def _compile_model(target: str, workload: Workload, folder: Path) -> Result:
    """A top-k as ONNX Runtime gets it."""
    import tvm_edge

    top_k = workload.operator == "top_k"
    source = _onnx_model(workload, folder) if top_k else _relax_module(workload)
    start = perf_counter()
    model = tvm_edge.compile(source, target, fallback="none")
    seconds = perf_counter() - start
    model.export(_file(workload, f"{target}.tvme", folder))
    return {"compile_seconds": seconds, "kernels": len(model.report.kernels)}


def _compile_kernel(target: str, workload: Workload, folder: Path) -> Result:
    import tvm

    from tvm_edge.compiler.cuda import cuda_compiler
    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering import opencl_intrinsics

    resolved = resolve_target(target)
    kernel = _kernel(workload, resolved.spec)
    compiler: Any = nullcontext()
    if target == "cuda":
        compiler = cuda_compiler(str(resolved.target.attrs["arch"]))
    else:
        opencl_intrinsics.register()
    with compiler, resolved.target:
        func = kernel.func.with_attr("global_symbol", "kernel")
        built = tvm.compile(func, target=resolved.target)
    built.export_library(str(_file(workload, f"{target}.so", folder)))
    tensors = [
        [[[int(dim) for dim in shape], dtype] for shape, dtype in tensors]
        for tensors in (kernel.inputs, kernel.outputs)
    ]
    _file(workload, f"{target}.json", folder).write_text(json.dumps(tensors))
    return {}


def _compile_stock(name: str, folder: Path) -> Result:
    """A job: compile a workload with TVM's own pipeline for CUDA, DispatchSortScan in it."""
    import tvm

    from tvm_edge.compiler.cuda import cuda_compiler
    from tvm_edge.hardware import resolve_target

    workload = find_workload(name)
    target = resolve_target("cuda").target
    with cuda_compiler(str(target.attrs["arch"])), target:
        built = tvm.compile(_relax_module(workload), target)
    built.export_library(str(_file(workload, "stock.so", folder)))
    return {}


def _save_onnx(name: str, folder: Path) -> Result:
    """A job: write the model that ONNX Runtime loads."""
    _onnx_model(find_workload(name), folder)
    return {}


def _build_cub(folder: Path) -> Result:
    """A job: compile the program around CUB."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise FileNotFoundError("no nvcc on PATH; install the CUDA toolkit")
    command = [compiler, "-O3", "-std=c++17", "-arch=native", str(_CUB_SOURCE), "-o"]
    subprocess.run([*command, str(folder / "cub_segmented_sort")], check=True)
    return {}


# --------------------------------------------------------------------------------------- timing


def _samples(run: Callable[[], Any], seconds: float) -> list[float]:
    """Microseconds of repeated runs."""
    samples: list[float] = []
    begin = perf_counter()
    while len(samples) < _LEAST_RUNS or (
        len(samples) < _MOST_RUNS and perf_counter() - begin < seconds
    ):
        start = perf_counter()
        run()
        samples.append((perf_counter() - start) * 1e6)
    return samples


def _host_us(run: Callable[[], Any], seconds: float) -> float:
    _samples(run, _WARM_UP)
    return median(_samples(run, seconds))


def _check(workload: Workload, outputs: Mapping[str, np.ndarray]) -> Result:
    """Of a model's outputs."""
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
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        options.inter_op_num_threads = 1
        path = _file(workload, "onnx", folder)
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        names = [output.name for output in session.get_outputs()]
        host = _host_us(lambda: session.run(names, inputs), limit)
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        return {"host_us": host, **_check(workload, outputs)}
    import tvm_edge

    model = tvm_edge.load(_file(workload, "llvm.tvme", folder), num_threads=int(threads))
    host = _host_us(lambda: model.run(inputs), limit)
    repeat = int(min(max(limit * 1e6 / host, _LEAST_RUNS), _MOST_RUNS))
    device = model.benchmark(inputs, repeat=repeat).device.median * 1e3
    return {"host_us": host, "device_us": device, **_check(workload, model.run(inputs))}


def _time_numpy(workload: Workload, seconds: float) -> Result:
    """One thread. The segment of each element is known before the clock starts."""
    data, axis = workload.data, workload.axis
    if workload.operator == "cumsum":
        host = _host_us(lambda: np.cumsum(data, axis=axis), seconds)
        return {"host_us": host, **workload.check(values=np.cumsum(data, axis=axis))}
    if workload.lengths:
        segment = workload.segment_of
        host = _host_us(lambda: np.lexsort((data, segment)), seconds)
        return {"host_us": host, **workload.check(np.lexsort((data, segment)))}

    def top_k() -> tuple[np.ndarray, np.ndarray]:
        indices = np.argsort(-data, axis=axis, kind="stable")[..., : workload.k]
        return indices, np.take_along_axis(data, indices, axis)

    if workload.operator == "top_k":
        return {"host_us": _host_us(top_k, seconds), **workload.check(*top_k())}
    host = _host_us(lambda: np.argsort(data, axis=axis, kind="stable"), seconds)
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
        host = _host_us(lambda: list(pool.map(one, parts)), float(seconds))
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
            results[name] = {"failed": _words(err)}
    return {"results": results}


def _words(err: Exception) -> str:
    """An error in one line of a table."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()] or ["no message"]
    return f"{type(err).__name__}: {lines[-1]}"[:160].replace("|", "/")


def _evaluate(evaluator: Callable[..., Any], *args: Any) -> float:
    """Microseconds of a call by TVM's timer of the device."""
    return median(evaluator(*args).results) * 1e6


def _virtual_machine(module: Any, device: Any) -> Any:
    from tvm.runtime.vm import VirtualMachine

    return VirtualMachine(module, device)


def _time_tvm_edge(target: str, workload: Workload, seconds: float, folder: Path) -> Result:
    """Of model and kernel what compiled."""
    import tvm

    device = tvm.device(target, 0)
    inputs = {name: tvm.runtime.tensor(a, device) for name, a in workload.inputs.items()}
    found = []
    if _file(workload, f"{target}.tvme", folder).exists():
        found.append(_time_model(target, workload, inputs, seconds, folder))
    if _file(workload, f"{target}.json", folder).exists():
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
    import tvm_ffi

    import tvm_edge
    from tvm_edge.runtime.artifact import read_artifact
    from tvm_edge.runtime.session import load_library

    device = tvm.device(target, 0)
    path = _file(workload, f"{target}.tvme", folder)
    model = tvm_edge.load(path)

    def run() -> None:
        model.run(inputs, device_outputs=True)
        device.sync()

    result = {"host_us": _host_us(run, seconds), **_check(workload, model.run(inputs))}
    artifact = read_artifact(path)
    machine = _virtual_machine(load_library(workload.name, artifact.library), device)
    weights = tvm_ffi.Array([tvm.runtime.tensor(weight, device) for weight in artifact.weights])
    evaluator = machine.time_evaluator("main", device, number=CALLS, repeat=_EVENT_ROUNDS)
    result["event_us"] = _evaluate(evaluator, *inputs.values(), weights)
    return result


def _time_kernel(
    target: str, workload: Workload, inputs: Mapping[str, Any], folder: Path
) -> Result:
    """The function that `_compile_kernel` made."""
    import tvm

    device = tvm.device(target, 0)
    _, outputs = json.loads(_file(workload, f"{target}.json", folder).read_text())
    flat = [tensor._create_view((math.prod(tensor.shape),)) for tensor in inputs.values()]
    made = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in outputs]
    module = tvm.runtime.load_module(str(_file(workload, f"{target}.so", folder)))
    evaluator = module.time_evaluator("kernel", device, number=CALLS, repeat=_EVENT_ROUNDS)
    microseconds = _evaluate(evaluator, *flat, *made)
    names = {"top_k": ("indices", "values"), "cumsum": ("values",)}
    found = zip(names.get(workload.operator, ("indices",)), made, strict=False)
    checked = workload.check(**{name: tensor.numpy() for name, tensor in found})
    return {"kernel_us": microseconds, **checked}


def _time_stock(workload: Workload, seconds: float, folder: Path) -> Result:
    import tvm

    device = tvm.device("cuda", 0)
    data = tvm.runtime.tensor(workload.data, device)
    module = tvm.runtime.load_module(str(_file(workload, "stock.so", folder)))
    machine = _virtual_machine(module, device)
    main = machine["main"]

    def run() -> None:
        main(data)
        device.sync()

    host = _host_us(run, seconds)
    evaluator = machine.time_evaluator("main", device, number=CALLS, repeat=_EVENT_ROUNDS)
    checked = _check(workload, {"only": main(data).numpy()})
    return {"host_us": host, "event_us": _evaluate(evaluator, data), **checked}


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

    result: Result = {"host_us": _host_us(run, seconds)}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(_EVENT_ROUNDS):
        start.record()
        for _ in range(CALLS):
            call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / CALLS)
    result["event_us"] = median(times)
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
    how = [str(CALLS), str(_EVENT_ROUNDS), str(seconds)]
    done = subprocess.run([*program, *how], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    result: Result = json.loads(done.stdout)
    result["event_us"] = median(result["event_us"])
    return result | workload.check(np.fromfile(found, "int32"))


# --------------------------------------------------------------------------------------- machine


def _describe(device: str, _folder: Path) -> Result:
    """A job: the machine, with the GPU and its peers' versions."""
    from benchmarks.machine import describe_machine

    machine = describe_machine()
    if device != "cuda":
        return machine
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    machine["gpu"] = found.splitlines()[0]
    compiler = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"release ([\d.]+)", compiler.stdout)
    machine["versions"]["nvcc"] = release[1] if release else "unknown"
    import importlib.metadata

    machine["versions"]["torch"] = importlib.metadata.version("torch")
    return machine


_CHILDREN: dict[str, Job] = {
    "build_cub": _build_cub,
    "compile": _compile,
    "compile_stock": _compile_stock,
    "copy": _copy,
    "describe": _describe,
    "save_onnx": _save_onnx,
    "time_cpu": _time_cpu,
    "time_gpu": _time_gpu,
}

if __name__ == "__main__" and is_child():
    serve(_CHILDREN)
