"""Kernels for this CPU without a model around them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi_orcjit import default_session

from tvm_edge.compiler.kernel_objects import build_kernels
from tvm_edge.files import temporary_folder
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.native import kernels_on_pool

__all__ = ["built_for_cpu"]

_NAME = "main"


def built_for_cpu(func: tirx.PrimFunc) -> Any:
    """Build a kernel as a model's are, unless it is in the cache; return what calls it."""
    cpu_pipeline.register()
    functions = {tvm.ir.GlobalVar(_NAME): func.with_attr("global_symbol", _NAME)}
    target = resolve_target("llvm").target
    (code,) = build_kernels(functions, target, cpu_pipeline.CPU, lambda _: None).objects
    with temporary_folder("kernel") as folder, kernels_on_pool():
        path = folder / f"{_NAME}.o"
        path.write_bytes(code)
        return default_session().load_module(str(path), cxx="true")[_NAME]
