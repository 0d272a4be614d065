"""Chains of kernels with regions that the runtime records, each compiled once a process."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import Tensor
from tvm.script import tirx as T
from tvm.target import Target

from tests.opencl.programs import compiled


def lower_recorded(module: tvm.IRModule, fixed: int) -> tvm.relax.VMExecutable:
    """Compile `module` for the virtual machine, with static regions for the runtime to record.

    Operators stay kernels of their own. The last `fixed` parameters of ``main`` are weights.
    """
    from tvm import relax
    from tvm.s_tir import dlight

    from tvm_edge.relay_passes.instructions.record_on_opencl import RecordOnOpenCL

    target = Target("opencl", host="llvm")
    main = module["main"]
    module["main"] = main.with_attr("num_input", len(main.params) - fixed)
    passes = [
        relax.transform.LegalizeOps(),
        dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.RewriteCUDAGraph(),
        RecordOnOpenCL(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    with target, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        lowered = tvm.transform.Sequential(passes)(module)
        return relax.build(lowered, target, relax_pipeline=tvm.transform.Sequential([]))


@functools.cache
def recorded_chain() -> tvm.relax.VMExecutable:
    """``main(x, w, v)`` on (4, 16) tensors, see `chain_result`.

    Seven launches of two kernels; those that read x or write the result are in no region, so that
    two regions of two launches are left, which read v and nothing of w.
    """
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module(s_tir=True)
    class Chain:
        @R.function
        def main(
            x: R.Tensor((4, 16), "float32"),
            w: R.Tensor((4, 16), "float32"),
            v: R.Tensor((4, 16), "float32"),
        ) -> R.Tensor((4, 16), "float32"):
            with R.dataflow():
                a = R.add(x, w)
                b = R.multiply(a, v)
                c = R.add(b, v)
                d = R.add(c, x)
                e = R.multiply(d, v)
                f = R.add(e, v)
                g = R.multiply(f, w)
                R.output(g)
            return g

    return lower_recorded(Chain, fixed=2)


def chain_result(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the result of `recorded_chain` by NumPy."""
    return ((((x + w) * v + v) + x) * v + v) * w


def _disturb(kind: str, source: Tensor, target: Tensor) -> None:
    """Copy `source` in one of the ways that a recording cannot hold."""
    if kind == "copy":
        source.copyto(target)
        return
    if kind == "allocation":
        between = tvm.runtime.empty(source.shape, str(source.dtype), source.device)
    else:
        source.device.sync()
        between = source
    copy = _copier()
    if between is not source:
        copy(source, between)
    copy(between, target)


@functools.cache
def _copier() -> Callable[..., None]:
    """``copy(a[4, 16], b[4, 16])``: b = a, by a kernel."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4, 16), "float32"), b: T.Buffer((4, 16), "float32")):
        for group in T.thread_binding(4, thread="blockIdx.x"):
            for item in T.thread_binding(16, thread="threadIdx.x"):
                b[group, item] = a[group, item]

    return compiled(main)["main"]


@functools.cache
def disturbed_chain(kind: str) -> tvm.relax.VMExecutable:
    """``main(x, w, v)``, see `disturbed_result`; a Python function copies between its launches."""
    from tvm import relax

    _copier()
    name = f"tests.opencl.disturb_{kind}"
    tvm_ffi.register_global_func(name, functools.partial(_disturb, kind))
    builder = relax.BlockBuilder()
    x, w, v = (relax.Var(name, relax.TensorType((4, 16), "float32")) for name in "xwv")
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            a = builder.emit(relax.op.add(x, w))
            b = builder.emit(relax.op.multiply(a, v))
            c = builder.emit(relax.op.call_dps_packed(name, (b,), out_ty=b.ty))
            d = builder.emit(relax.op.add(c, v))
            e = builder.emit_output(relax.op.multiply(d, w))
        builder.emit_func_output(e)
    return lower_recorded(builder.get(), fixed=2)


def disturbed_result(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the result of `disturbed_chain` by NumPy."""
    return ((x + w) * v + v) * w
