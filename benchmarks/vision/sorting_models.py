"""Models and kernels of sorts and scans, and the program around CUB."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.vision.workloads import Workload, find_workload

__all__ = [
    "build_cub",
    "compile_stock",
    "compile_workload",
    "path_of",
    "save_onnx",
    "words_of",
]

_COMPILE_SECONDS = 90  # after which the process is ended, by signal 14
_CUB_SOURCE = Path(__file__).with_name("cub_segmented_sort.cu")

Result = dict[str, Any]


def words_of(err: Exception) -> str:
    """An error in one line of a table."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()] or ["no message"]
    return f"{type(err).__name__}: {lines[-1]}"[:160].replace("|", "/")


def path_of(name: str, end: str, folder: Path) -> Path:
    """A file of a workload."""
    stem = re.sub(r"[^\w=]+", "_", name)
    return folder / f"{stem}.{end}"


# ------------------------------------------------------------------------------ models and kernels


def _onnx_model(workload: Workload, folder: Path) -> Path:
    """One node. An argsort is a TopK of all, the smallest first."""
    from onnx import TensorProto, helper, numpy_helper, save

    path = path_of(workload.name, "onnx", folder)
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


def compile_workload(target: str, name: str, folder: Path) -> Result:
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
            result[f"{what}_failed"] = words_of(err)
    return result


def _compile_model(target: str, workload: Workload, folder: Path) -> Result:
    """A top-k as ONNX Runtime gets it."""
    import tvm_edge

    top_k = workload.operator == "top_k"
    source = _onnx_model(workload, folder) if top_k else _relax_module(workload)
    start = perf_counter()
    model = tvm_edge.compile(source, target, fallback="none")
    seconds = perf_counter() - start
    model.export(path_of(workload.name, f"{target}.tvme", folder))
    return {"compile_seconds": seconds, "kernels": len(model.report.kernels)}


def _compile_kernel(target: str, workload: Workload, folder: Path) -> Result:
    from tvm_edge.hardware import resolve_target

    kernel = _kernel(workload, resolve_target(target).spec)
    _build_kernel(kernel, target, path_of(workload.name, f"{target}.so", folder))
    tensors = [
        [[[int(dim) for dim in shape], dtype] for shape, dtype in tensors]
        for tensors in (kernel.inputs, kernel.outputs)
    ]
    path_of(workload.name, f"{target}.json", folder).write_text(json.dumps(tensors))
    return {}


def _build_kernel(kernel: Any, target: str, path: Path) -> None:
    """Compile a GPU kernel as the function ``kernel`` of a library.

    Parameters
    ----------
    kernel : tvm_edge.schedules.emit.Kernel
    target : {"cuda", "opencl"}
    path : Path
        Of the library.
    """
    import tvm

    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering import opencl_intrinsics
    from tvm_edge.lowering.cuda_compiler import cuda_compiler

    resolved = resolve_target(target)
    compiler: Any = nullcontext()
    if target == "cuda":
        compiler = cuda_compiler(str(resolved.target.attrs["arch"]))
    else:
        opencl_intrinsics.register()
    with compiler, resolved.target:
        func = kernel.func.with_attr("global_symbol", "kernel")
        built = tvm.compile(func, target=resolved.target)
    built.export_library(str(path))


def compile_stock(name: str, folder: Path) -> Result:
    """A job: compile a workload with TVM's own pipeline for CUDA, DispatchSortScan in it."""
    import tvm

    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering.cuda_compiler import cuda_compiler

    workload = find_workload(name)
    target = resolve_target("cuda").target
    with cuda_compiler(str(target.attrs["arch"])), target:
        built = tvm.compile(_relax_module(workload), target)
    built.export_library(str(path_of(workload.name, "stock.so", folder)))
    return {}


def save_onnx(name: str, folder: Path) -> Result:
    """A job: write the model that ONNX Runtime loads."""
    _onnx_model(find_workload(name), folder)
    return {}


def build_cub(folder: Path) -> Result:
    """A job: compile the program around CUB."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise FileNotFoundError("no nvcc on PATH; install the CUDA toolkit")
    command = [compiler, "-O3", "-std=c++17", "-arch=native", str(_CUB_SOURCE), "-o"]
    subprocess.run([*command, str(folder / "cub_segmented_sort")], check=True)
    return {}
