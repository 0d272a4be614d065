"""Numbers, targets and kernels of models in bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tvm
from tvm import tirx

from tvm_edge.compiler.compilation import begin
from tvm_edge.compiler.driver import PIPELINE
from tvm_edge.compiler.options import Options
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cpu_pipeline

__all__ = [
    "ARM",
    "AVX2",
    "EPSILON",
    "HAS_PAIRS",
    "ZEN4",
    "kernels",
    "rounded",
    "scheduled",
    "weights",
]

X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
ZEN4, AVX2 = X86 | {"mcpu": "znver4"}, X86 | {"mcpu": "haswell"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+bf16"]}
HAS_PAIRS = resolve_target("llvm").spec.pair_product != ""
EPSILON = 2.0**-8  # of bfloat16, relative
_RNG = np.random.default_rng(11)


def rounded(values: np.ndarray) -> np.ndarray:
    """`values` rounded to bfloat16, in float32."""
    return values.astype(ml_dtypes.bfloat16).astype("float32")


def weights(*shape: int) -> np.ndarray:
    """Bfloat16 numbers that keep the size of what they are multiplied with."""
    scale = 1 / np.sqrt(np.prod(shape[1:]))
    return rounded((scale * _RNG.standard_normal(shape)).astype("float32"))


def scheduled(model: onnx.ModelProto, target: Any) -> dict[str, tirx.PrimFunc]:
    """Scheduled kernels of a model in bfloat16, by name."""
    options = Options(precision="bfloat16")
    done = PIPELINE.part(until="ConcatInPlace").run(begin(model, target, options))
    functions = done.module.functions_items()
    return {gvar.name_hint: f for gvar, f in functions if isinstance(f, tirx.PrimFunc)}


def kernels(model: onnx.ModelProto, target: Any) -> dict[str, str]:
    """Assembly of the kernels of a model in bfloat16, by name."""
    cpu_pipeline.register()
    code = {}
    for name, func in scheduled(model, target).items():
        named = func.with_attr("global_symbol", "main")
        built = tvm.compile(named, target=tvm.target.Target(target), tir_pipeline=cpu_pipeline.CPU)
        code[name] = str(built.mod.inspect_source("asm"))
    return code
