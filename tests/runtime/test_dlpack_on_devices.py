"""Tensors of a GPU, and of the libraries that have theirs there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model
from tests.runtime.arrays import SHAPE, Producer, operator, placed_inputs, values
from tests.runtime.support import run_python
from tvm_edge import InputError


@pytest.fixture(scope="module")
def on_gpu(gpu: str) -> tvm_edge.CompiledModel:
    """``y = x + x`` on a GPU."""
    return operator("Add", target=gpu)


def test_tensors_of_the_device(on_gpu: tvm_edge.CompiledModel, gpu: str) -> None:
    device = tvm.device(gpu, 0)
    on_device = tvm.runtime.tensor(values(), device)
    (placed,) = placed_inputs(on_gpu, {"x": on_device})
    assert placed.data_ptr() == on_device.data_ptr()
    for value in (on_device, values(), tvm.runtime.tensor(values()), Producer(on_device)):
        np.testing.assert_array_equal(on_gpu.run({"x": value})["y"], 2 * values())
    with pytest.raises(InputError, match="float16"):
        on_gpu.run({"x": tvm.runtime.tensor(values().astype("float16"), device)})
    with pytest.raises(InputError, match="shape"):
        on_gpu.run({"x": tvm.runtime.tensor(values()[0], device)})


def test_a_view_of_a_device_tensor(on_gpu: tvm_edge.CompiledModel, gpu: str) -> None:
    whole = tvm.runtime.tensor(np.arange(256, dtype="float32"), tvm.device(gpu, 0))
    for first in (0, 5, 16, 192):
        view = whole._create_view(SHAPE, "float32", 4 * first)
        expected = 2 * np.arange(first, first + 64, dtype="float32").reshape(SHAPE)
        np.testing.assert_array_equal(on_gpu.run({"x": view})["y"], expected)


def test_a_device_tensor_for_a_cpu_model(doubled: tvm_edge.CompiledModel, gpu: str) -> None:
    on_device = tvm.runtime.tensor(values(), tvm.device(gpu, 0))
    np.testing.assert_array_equal(doubled.run({"x": on_device})["y"], 2 * values())


CHAIN = """
import sys
import numpy as np
import tvm, tvm_edge
from tvm_edge import opencl

first, second = (tvm_edge.load(sys.argv[1]) for _ in range(2))
x = tvm.runtime.tensor(np.ones((4, 16), "float32"), tvm.opencl())
opencl.profile_start()
for model in (first, second, first):
    x = model.run({"x": x}, device_outputs=True)["y"]
print([command["kind"] for command in opencl.profile_stop()], x.numpy().max())
"""


def test_models_chain_on_the_device(
    on_gpu: tvm_edge.CompiledModel, gpu: str, tmp_path: Path
) -> None:
    """Nothing comes back to the host between runs."""
    if gpu != "opencl":
        pytest.skip("CUDA's copies are not counted")
    path = on_gpu.export(tmp_path / "doubled.tvme")
    # In shared virtual memory copies are the host's own, and not counted.
    environment = {"TVM_EDGE_OPENCL_MEMORY": "buffer", "TVM_USE_RUNTIME_LIB": "1"}
    output = run_python(CHAIN, path, environment=environment)
    assert output.split() == ["['kernel',", "'kernel',", "'kernel']", "8.0"]


def test_torch_on_a_side_stream() -> None:
    """What PyTorch still computes on a stream of its own is waited for."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and tvm.runtime.enabled("cuda")):
        pytest.skip("no CUDA device for PyTorch and TVM")
    model, cpu = operator("Add", target="cuda"), operator("Add")
    stream = torch.cuda.Stream()
    slow = torch.randn(4096, 4096, device="cuda")
    for i in range(10):
        expected = torch.from_numpy(values(i))
        x = torch.zeros(SHAPE, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(5):
                slow = slow @ slow * 1e-4
            x += expected.to("cuda", non_blocking=True)
            (placed,) = model._session.place(model._bind({"x": x}))
            assert placed.data_ptr() == x.data_ptr()
            out = model.run({"x": x})["y"]
            host = cpu.run({"x": x})["y"]
        np.testing.assert_array_equal(out, 2 * expected.numpy())
        np.testing.assert_array_equal(host, 2 * expected.numpy())
        strided = torch.stack([x, x], -1)[..., 0]
        np.testing.assert_array_equal(model.run({"x": strided})["y"], 2 * expected.numpy())


def test_torch_reads_outputs_on_a_side_stream() -> None:
    """A stream that does not wait for the default one finds the result finished."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and tvm.runtime.enabled("cuda")):
        pytest.skip("no CUDA device for PyTorch and TVM")
    weight = np.full((64, 64, 5, 5), 1e-3, "float32")
    node = helper.make_node("Conv", ["x", "weight"], ["y"], pads=[2] * 4)
    heavy = make_model([node], {"x": (1, 64, 448, 448)}, ["y"], {"weight": weight})
    model = tvm_edge.compile(heavy, "cuda")
    side = torch.cuda.Stream()
    x = tvm.runtime.tensor(np.ones((1, 64, 448, 448), "float32"), tvm.cuda())
    expected = model.run({"x": x})["y"]
    for factor in (2, 4, 8, 16):  # exact
        x.copyfrom(np.full((1, 64, 448, 448), factor, "float32"))
        out = model.run({"x": x}, device_outputs=True)["y"]
        with torch.cuda.stream(side):
            seen = torch.from_dlpack(out).clone()
        torch.cuda.synchronize()
        np.testing.assert_array_equal(seen.cpu().numpy(), factor * expected)


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    if not tvm.runtime.enabled("cuda"):
        pytest.skip("no CUDA device for TVM")
    model, cpu = operator("Add", target="cuda"), operator("Add")
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.asarray(values())
        for value in (x, cupy.asarray(values().T.copy()).T, cupy.stack([x, x], -1)[..., 0]):
            np.testing.assert_array_equal(model.run({"x": value})["y"], 2 * values())
            np.testing.assert_array_equal(cpu.run({"x": value})["y"], 2 * values())
        out = cupy.from_dlpack(model.run({"x": x}, device_outputs=True)["y"])
        np.testing.assert_array_equal(out.get(), 2 * values())


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    targets = ["llvm", "cuda"] if jax.default_backend() == "gpu" else ["llvm"]
    x = jax.numpy.asarray(values()) * 1  # computed, perhaps still being so
    for target in targets:
        model = operator("Add", target=target)
        for value in (x, x.T.T, jax.device_put(x, jax.devices("cpu")[0])):
            np.testing.assert_array_equal(model.run({"x": value})["y"], 2 * values())
        out = model.run({"x": x}, device_outputs=True)["y"]
        np.testing.assert_array_equal(np.asarray(jax.dlpack.from_dlpack(out)), 2 * values())
