"""Compile a model that returns the result of every kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import tvm

from tvm_edge.compiler.driver import built, decided_fields, lowered
from tvm_edge.compiler.options import Options
from tvm_edge.frontend.specs import spec_of
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.memory.plans import AS_IS, Plan
from tvm_edge.report import TensorSpec
from tvm_edge.runtime import CompiledModel
from tvm_edge.runtime.threads import resolve_threads

__all__ = ["KernelResult", "compile_handing_out"]


@dataclass(frozen=True)
class KernelResult:
    """An output that is the result of a kernel.

    Attributes
    ----------
    output : TensorSpec
    kernel : int
        Kernels are numbered in execution order.
    operators : tuple of str
        The nodes of the model that it computes.
    """

    output: TensorSpec
    kernel: int
    operators: tuple[str, ...]


@hold_interrupts()
def compile_handing_out(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    way: Plan = AS_IS,
    without: Collection[str] = (),
    **options: Any,
) -> tuple[CompiledModel, tuple[KernelResult, ...]]:
    """:func:`compile_with`, where the result of every kernel is an output after the model's own.

    The kernels are those of the build without them.

    Returns
    -------
    CompiledModel
    tuple of KernelResult
    """
    decided = decided_fields({}, None, None, None, way, without)
    threads = resolve_threads(options.get("num_threads"), options.get("cpus"))
    done = lowered(model, target, Options(**options), hands_out=True, **decided)
    nodes, kernels = done.imported.nodes, done.kernels
    results = tuple(
        KernelResult(
            spec_of(f"kernel {handed.kernel}/{handed.field}", handed.type),
            handed.kernel,
            tuple(nodes[index].name for index in kernels[handed.kernel].nodes),
        )
        for handed in done.handed_out
    )
    outputs = (*done.imported.outputs, *(result.output for result in results))
    imported = replace(done.imported, outputs=outputs)
    return built(replace(done, imported=imported), threads), results
