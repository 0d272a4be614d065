"""Model of scheduled kernels alone, to be run and timed beside others."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.compiler.build import build, described_target
from tvm_edge.compiler.pipeline import instructions_of
from tvm_edge.frontend.specs import output_specs, spec_of
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.memory.lift_weights import WEIGHTS_PARAM
from tvm_edge.report import CompileReport
from tvm_edge.runtime import CompiledModel, DevicePlan, ModelInfo
from tvm_edge.runtime.threads import resolve_threads

__all__ = ["kernel_model"]


def kernel_model(
    mod: tvm.IRModule, resolved: ResolvedTarget, num_threads: int | None = None
) -> CompiledModel:
    """Generate code for kernels of one device.

    Parameters
    ----------
    mod : IRModule
        ``main`` calls scheduled kernels; its parameters are the model's inputs, ``input0`` and so
        on, and there are no weights.
    resolved : ResolvedTarget
    num_threads : int, optional

    Raises
    ------
    MissingDependencyError, DeviceUnavailableError
        No compiler for CUDA, or it does not build for the device.
    """
    main = mod["main"]
    inputs = tuple(spec_of(f"input{i}", param.ty) for i, param in enumerate(main.params))
    count = len(main.ret_ty.fields) if isinstance(main.ret_ty, relax.TupleType) else 1
    outputs = output_specs([f"output{i}" for i in range(count)], main)
    weights = relax.Var(WEIGHTS_PARAM, relax.TupleType([]))
    mod = mod.clone()
    mod["main"] = relax.Function(
        [*main.params, weights], main.body, main.ret_ty, main.is_pure, main.attrs
    )
    lowered = instructions_of(mod, resolved)
    code = described_target(resolved)
    report = CompileReport("kernels", resolved.spec.name, (), (), None)
    plan = DevicePlan((resolved.kind,), (0,) * len(inputs), ())
    info = ModelInfo(inputs, outputs, code, plan, report)
    return CompiledModel(info, build(lowered, resolved), [], resolve_threads(num_threads))
