"""Whole networks in TVM's Relax virtual machine, on OpenCL alone and beside a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.global_info import VDevice
from tvm.s_tir import dlight
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.target import Target

import tvm_edge.opencl
from tests.opencl.support import settled_memory, upload

TARGET = Target("opencl", host="llvm")


@I.ir_module(s_tir=True)
class Network:
    """Convolution, bias, ReLU, pooling, a residual sum, a dense layer, softmax."""

    @R.function
    def main(
        x: R.Tensor((1, 4, 12, 12), "float32"),
        w: R.Tensor((8, 4, 3, 3), "float32"),
        b: R.Tensor((1, 8, 1, 1), "float32"),
        d: R.Tensor((8 * 6 * 6, 10), "float32"),
    ) -> R.Tensor((1, 10), "float32"):
        with R.dataflow():
            y = R.nn.relu(R.add(R.nn.conv2d(x, w, padding=(1, 1)), b))
            p = R.nn.max_pool2d(y, pool_size=(2, 2), strides=(2, 2))
            s = R.add(p, R.multiply(p, R.const(0.5, "float32")))
            f = R.reshape(s, (1, 8 * 6 * 6))
            out = R.nn.softmax(R.matmul(f, d), axis=-1)
            R.output(out)
        return out


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(1, 4, 12, 12), (8, 4, 3, 3), (1, 8, 1, 1), (288, 10)]
    return [rng.standard_normal(shape).astype("float32") * 0.3 for shape in shapes]


def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The network in NumPy, in double precision."""
    x, w, b, d = (v.astype("float64") for v in (x, w, b, d))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w) + b, 0)
    p = y.reshape(1, 8, 6, 2, 6, 2).max(axis=(3, 5))
    z = (p * 1.5).reshape(1, -1) @ d
    e = np.exp(z - z.max())
    return e / e.sum()


@pytest.fixture(scope="module")
def network(device: Any) -> relax.VMExecutable:
    """`Network` with TVM's own fall-back GPU schedules and planned memory."""
    with TARGET:
        module = relax.get_pipeline("zero")(Network)
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    return relax.build(module, TARGET)


def check(result: Any) -> None:
    # Sums of at most 288 terms of size one in float32.
    np.testing.assert_allclose(result.numpy(), expected(*inputs()), rtol=1e-4, atol=1e-6)


def test_a_network(network: relax.VMExecutable) -> None:
    vm = relax.VirtualMachine(network, tvm.opencl(0))
    arguments = [upload(value) for value in inputs()]
    for _ in range(3):
        check(vm["main"](*arguments))


def test_planned_memory_is_shared_by_views(network: relax.VMExecutable) -> None:
    """The VM cuts tensors out of few blocks; running again allocates nothing new."""
    vm = relax.VirtualMachine(network, tvm.opencl(0))
    arguments = [upload(value) for value in inputs()]
    check(vm["main"](*arguments))
    before = settled_memory()
    for _ in range(5):
        check(vm["main"](*arguments))
    after = tvm_edge.opencl.memory()
    assert (after["in_use"], after["peak"]) == (before["in_use"], before["peak"])


def test_an_exported_network(network: relax.VMExecutable, tmp_path: Path) -> None:
    network.export_library(str(tmp_path / "network.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "network.so"))
    vm = relax.VirtualMachine(loaded, tvm.opencl(0))
    check(vm["main"](*map(upload, inputs())))


def test_a_stateful_call(network: relax.VMExecutable) -> None:
    vm = relax.VirtualMachine(network, tvm.opencl(0))
    vm.set_input("main", *map(upload, inputs()))
    vm.invoke_stateful("main")
    check(vm.get_outputs("main"))


# ---- a program for two devices ----


def two_devices() -> tvm.IRModule:
    """ReLU on the CPU, a product on OpenCL, a sum on the CPU."""
    cpu, gpu = VDevice("llvm"), VDevice("opencl")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 16), "float32", vdevice=cpu))
    w = relax.Var("w", relax.TensorType((16, 16), "float32", vdevice=gpu))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            a = builder.emit(relax.op.nn.relu(x))
            moved = builder.emit(relax.op.to_vdevice(a, gpu))
            product = builder.emit(relax.op.multiply(moved, w))
            product = builder.emit(relax.op.add(product, w))
            back = builder.emit(relax.op.to_vdevice(product, cpu))
            out = builder.emit_output(relax.op.add(back, x))
        builder.emit_func_output(out)
    module = builder.get()
    module.update_global_info("vdevice", [cpu, gpu])
    return module


def schedule_opencl(module: tvm.IRModule) -> tvm.IRModule:
    """dlight's fall-back for the functions whose target is OpenCL."""
    functions = {}
    for name, function in module.functions.items():
        target = function.attrs.get("target") if function.attrs else None
        if target is not None and target.kind.name == "opencl":
            part = tvm.IRModule({name: function})
            with target:
                part = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(part)
            function = part[name]
        functions[name] = function
    for name, function in functions.items():
        module.update_func(name, function)
    return module


def test_a_cpu_and_an_opencl_device(device: Any) -> None:
    t = relax.transform
    before = [
        t.RealizeVDevice(),
        t.LegalizeOps(),
        t.FoldConstant(),
    ]
    # FuseTIR loses the target that LegalizeOps gave each function: left out.
    # StaticPlanBlockMemory reuses one storage across devices: left out.
    after = [
        t.RewriteDataflowReshape(),
        t.ToNonDataflow(),
        t.RemovePurityChecking(),
        t.CallTIRRewrite(),
        t.LowerAllocTensor(),
        t.KillAfterLastUse(),
        t.LowerRuntimeBuiltin(),
        t.ComputePrimValue(),
        t.VMShapeLower(),
        t.AttachGlobalSymbol(),
    ]
    module = tvm.ir.transform.Sequential(before)(two_devices())
    module = schedule_opencl(module)
    module = tvm.ir.transform.Sequential(after)(module)
    empty_pipeline = tvm.ir.transform.Sequential([])
    executable = relax.build(module, Target("llvm"), relax_pipeline=empty_pipeline)
    vm = relax.VirtualMachine(executable, [tvm.cpu(0), tvm.opencl(0)])
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((16, 16)).astype("float32") for _ in range(2))
    tvm_edge.opencl.profile_start()
    result = vm["main"](tvm.runtime.tensor(x), upload(w))
    kernels = [r["name"] for r in tvm_edge.opencl.profile_stop() if r["kind"] == "kernel"]
    assert len(kernels) == 2 and all("opencl" in name for name in kernels)
    np.testing.assert_allclose(result.numpy(), np.maximum(x, 0) * w + w + x, rtol=1e-6, atol=1e-6)
