"""A network through stock TVM, as its documentation has it: ``tvm.compile(mod, target)``."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error

__all__ = ["compile_stock", "time_stock"]


def compile_stock(model: Path, library: Path) -> None:
    """Compile with TVM's importer and its default pipeline for CUDA, CUDA graphs switched on."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering.cuda_compiler import cuda_compiler

    target = resolve_target("cuda").target
    module = relax.transform.DecomposeOpsForInference()(from_onnx(onnx.load(model)))
    config = {"relax.backend.use_cuda_graph": True}
    arch = str(target.attrs["arch"])
    with cuda_compiler(arch), target, tvm.transform.PassContext(opt_level=3, config=config):
        tvm.compile(module, target).export_library(str(library))


def time_stock(
    library: Path, inputs: dict[str, np.ndarray], expected: np.ndarray, calls: int, rounds: int
) -> dict[str, Any]:
    """Microseconds of a call by the device's timer, and the error of its result."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    device = tvm.cuda(0)
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), device)
    tensors = [tvm.runtime.tensor(value, device) for value in inputs.values()]
    result = machine["main"](*tensors)
    result = result.numpy() if hasattr(result, "numpy") else result[0].numpy()
    error = relative_error(result, expected)
    timer = machine.time_evaluator("main", device, number=calls, repeat=rounds)
    return {"us": median(timer(*tensors).results) * 1e6, "error": error}
