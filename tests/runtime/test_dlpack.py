"""Inputs and outputs through DLPack: what other libraries hand in and take out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model
from tests.runtime.support import run_python
from tvm_edge import InputError

SHAPE = (4, 16)
CPU, CUDA = 1, 2  # DLPack's numbers


def operator(
    name: str, dtype: int = TensorProto.FLOAT, target: str = "llvm"
) -> tvm_edge.CompiledModel:
    """``y = name(x)``, or ``name(x, x)`` for operators of two operands."""
    operands = ["x", "x"] if name in ("Add", "Or") else ["x"]
    model = make_model(
        [helper.make_node(name, operands, ["y"], name="op")],
        {"x": SHAPE},
        ["y"],
        dtypes={"x": dtype, "y": dtype},
    )
    return tvm_edge.compile(model, target)


@pytest.fixture(scope="module")
def doubled() -> tvm_edge.CompiledModel:
    """``y = x + x``."""
    return operator("Add")


@pytest.fixture(scope="module")
def on_gpu(gpu: str) -> tvm_edge.CompiledModel:
    """``y = x + x`` on a GPU."""
    return operator("Add", target=gpu)


@pytest.fixture(scope="module")
def passing() -> Callable[[str], tvm_edge.CompiledModel]:
    """Outputs that are an input, its elements in another shape, and a weight; by target."""
    made: dict[str, tvm_edge.CompiledModel] = {}
    proto = make_model(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Flatten", ["x"], ["flat"], axis=0),
            helper.make_node("Identity", ["weight"], ["constant"]),
        ],
        {"x": SHAPE},
        ["same", "flat", "constant"],
        {"weight": np.arange(64, dtype="float32")},
    )

    def compiled(target: str) -> tvm_edge.CompiledModel:
        if target not in made:
            made[target] = tvm_edge.compile(proto, target)
        return made[target]

    return compiled


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("float32")


def aligned(shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> np.ndarray:
    """An array on 64 bytes, filled with random numbers."""
    array = np.from_dlpack(tvm.runtime.empty(shape, dtype))
    array[...] = np.random.default_rng(1).standard_normal(shape)
    return array


class Producer:
    """Another library's array, as the protocol of 2023 has it."""

    def __init__(self, data: Any, device: tuple[int, int] | None = None) -> None:
        self.data = data
        self.device = device or data.__dlpack_device__()
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        accepted = {k: v for k, v in options.items() if k in ("max_version", "copy")}
        return self.data.__dlpack__(**accepted)


class OldProducer(Producer):
    """Before DLPack 1.0 there was no ``max_version``, and no ``dl_device``."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        self.asked.append({"stream": stream})
        return self.data.__dlpack__()


LAYOUTS: dict[str, Callable[[], np.ndarray]] = {
    "aligned": aligned,
    "off alignment": lambda: aligned((65,))[1:].reshape(SHAPE),
    "strided": lambda: aligned((8, 48))[::2, ::3],
    "reversed": lambda: aligned()[::-1, ::-1],
    "transposed": lambda: aligned((16, 4)).T,
    "broadcast": lambda: np.broadcast_to(aligned((1, 16)), SHAPE),
}


@pytest.mark.parametrize("producer", [Producer, OldProducer])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_from_any_library(
    doubled: tvm_edge.CompiledModel, layout: str, producer: type[Producer]
) -> None:
    array = LAYOUTS[layout]()
    if layout == "broadcast" and producer is OldProducer:
        array = np.array(array)  # read-only: cannot be said before DLPack 1.0
    before = array.copy()
    np.testing.assert_array_equal(doubled.run({"x": producer(array)})["y"], 2 * before)
    np.testing.assert_array_equal(array, before)


TYPES = {
    "float16": (TensorProto.FLOAT16, "Add"),
    "bfloat16": (TensorProto.BFLOAT16, "Add"),
    "float64": (TensorProto.DOUBLE, "Add"),
    "int8": (TensorProto.INT8, "Add"),
    "int64": (TensorProto.INT64, "Add"),
    "bool": (TensorProto.BOOL, "Not"),
}


def of_type(name: str) -> tuple[np.ndarray, np.ndarray]:
    """An input of a type, and what ``TYPES``' operator makes of it."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.random.default_rng(2).integers(0, 2 if name == "bool" else 60, SHAPE).astype(dtype)
    return array, ~array if name == "bool" else array + array


@pytest.mark.parametrize("name", TYPES)
def test_every_type(name: str) -> None:
    array, expected = of_type(name)
    dtype, op = TYPES[name]
    model = operator(op, dtype)
    for value in (array, array.copy(order="F"), tvm.runtime.tensor(array)):
        result = model.run({"x": value})["y"]
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    model.warmup()
    assert model.benchmark(repeat=1).repeat == 1  # its random inputs have the type too


def test_bfloat16_weights_travel(tmp_path: Path) -> None:
    weight = np.arange(64).reshape(SHAPE).astype(ml_dtypes.bfloat16)
    model = make_model(
        [helper.make_node("Add", ["x", "weight"], ["y"])],
        {"x": SHAPE},
        ["y"],
        {"weight": weight},
        dtypes={"x": TensorProto.BFLOAT16, "y": TensorProto.BFLOAT16},
    )
    x, _ = of_type("bfloat16")
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "weights.tvme")
    np.testing.assert_array_equal(tvm_edge.load(path).run({"x": x})["y"], x + weight)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    array, expected = of_type(name)
    dtype, op = TYPES[name]
    model = operator(op, dtype)
    tensor = torch.from_dlpack(tvm.runtime.tensor(array))
    wide = torch.stack([tensor, tensor], -1)[..., 0]  # strided
    for value in (tensor, wide, wide.T.contiguous().T):
        np.testing.assert_array_equal(model.run({"x": value})["y"], expected)
        out = torch.from_dlpack(model.run({"x": value}, device_outputs=True)["y"])
        assert out.dtype == tensor.dtype


def test_torch_tensors_that_are_more_than_numbers(doubled: tvm_edge.CompiledModel) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(values())
    with pytest.raises(InputError, match=r"detach\(\)"):
        doubled.run({"x": x.clone().requires_grad_()})
    with pytest.raises(InputError, match="layout"):
        doubled.run({"x": x.to_sparse()})
    with pytest.raises(InputError, match="meta"):
        doubled.run({"x": x.to("meta")})
    with pytest.raises(InputError, match=r"float64.*float32"):
        doubled.run({"x": x.double()})
    with pytest.raises(InputError, match="shape"):
        doubled.run({"x": x.T})


@pytest.mark.parametrize("read_only", [False, True])
def test_aligned_host_data_is_not_copied(doubled: tvm_edge.CompiledModel, read_only: bool) -> None:
    array = aligned()
    if read_only:
        array.flags.writeable = False
    for value in (array, Producer(array)):
        (placed,) = doubled._session.place(doubled._bind({"x": value}))
        assert placed.data_ptr() == array.ctypes.data


def test_a_view_that_begins_behind_its_handle(doubled: tvm_edge.CompiledModel) -> None:
    """TVM's kernels refuse a byte offset, and its Python does not show it."""
    whole = tvm.runtime.tensor(np.arange(256, dtype="float32"))
    for first in (0, 5, 16, 192):
        view = whole._create_view(SHAPE, "float32", 4 * first)
        expected = 2 * np.arange(first, first + 64, dtype="float32").reshape(SHAPE)
        np.testing.assert_array_equal(doubled.run({"x": view})["y"], expected)


def raising(error: Exception) -> Any:
    class Raising(Producer):
        def __dlpack__(self, **_options: Any) -> Any:
            raise error

    return Raising(values())


def used_twice() -> Any:
    class Used(Producer):
        capsule = values().__dlpack__()

        def __dlpack__(self, **_options: Any) -> Any:
            return self.capsule

    used = Used(values())
    np.from_dlpack(used)
    return used


class NoDevice:
    def __dlpack__(self, **_options: Any) -> Any:
        return values().__dlpack__()


class NoCapsule(Producer):
    def __dlpack__(self, **_options: Any) -> Any:
        return "a string"


BAD_PRODUCERS: dict[str, tuple[Callable[[], Any], str]] = {
    "BufferError": (lambda: raising(BufferError("not now")), "not now"),
    "another error": (lambda: raising(KeyError("surprise")), "surprise"),
    "no message": (lambda: raising(AssertionError()), "AssertionError"),
    "capsule used twice": (used_twice, "PyCapsule"),
    "no device": (NoDevice, "__dlpack_device__"),
    "no capsule": (lambda: NoCapsule(values()), "PyCapsule"),
    "type": (lambda: Producer(values().astype("float64")), "float64"),
    "shape": (lambda: Producer(values()[0]), "shape"),
}


@pytest.mark.parametrize("case", BAD_PRODUCERS)
def test_a_bad_producer_is_an_input_error(doubled: tvm_edge.CompiledModel, case: str) -> None:
    make, message = BAD_PRODUCERS[case]
    with pytest.raises(InputError, match=message) as caught:
        doubled.run({"x": make()})
    assert caught.value.name == "x"


def test_a_gpu_library_is_asked_to_copy_to_the_host(doubled: tvm_edge.CompiledModel) -> None:
    """Only the producer knows which of its streams still writes the data."""
    producer = Producer(values(), device=(CUDA, 0))
    np.testing.assert_array_equal(doubled.run({"x": producer})["y"], 2 * values())
    assert [asked["dl_device"] for asked in producer.asked] == [(CPU, 0)]


def test_a_gpu_library_that_only_lends(doubled: tvm_edge.CompiledModel) -> None:
    """It is asked to be ready for CUDA's default stream, DLPack's number 1."""

    class Lending(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            self.asked.append(options)
            raise BufferError("on the GPU it stays")

    producer = Lending(values(), device=(CUDA, 0))
    with pytest.raises(InputError, match=r"it stays.*host memory"):
        doubled.run({"x": producer})
    assert producer.asked[-1]["stream"] == 1


# ------------------------------------------------------------------------------------- outputs


def test_cpu_outputs_are_shared_with_numpy(doubled: tvm_edge.CompiledModel) -> None:
    out = doubled.run({"x": values()}, device_outputs=True)["y"]
    array = np.from_dlpack(out)
    assert array.ctypes.data == out.data_ptr()
    np.testing.assert_array_equal(array, 2 * values())


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_device_outputs_belong_to_the_caller(
    passing: Callable[[str], tvm_edge.CompiledModel], request: pytest.FixtureRequest, where: str
) -> None:
    """Writing to one changes no input, no other output and no weight, nor the other way round."""
    target = "llvm" if where == "cpu" else request.getfixturevalue("gpu_kind")
    model = passing(target)
    device = tvm.cpu() if target == "llvm" else tvm.device(target, 0)
    x = tvm.runtime.tensor(values(), device)
    outputs = model.run({"x": x}, device_outputs=True)
    x.copyfrom(np.full(SHAPE, 9, "float32"))
    np.testing.assert_array_equal(outputs["same"].numpy(), values())
    outputs["same"].copyfrom(np.full(SHAPE, 7, "float32"))
    np.testing.assert_array_equal(outputs["flat"].numpy(), values().reshape(1, -1))
    np.testing.assert_array_equal(x.numpy(), 9)
    outputs["constant"].copyfrom(np.zeros(64, "float32"))
    again = model.run({"x": x})
    np.testing.assert_array_equal(again["constant"], np.arange(64))
    np.testing.assert_array_equal(again["same"], 9)


@pytest.fixture
def gpu_kind() -> str:
    """Some GPU of this machine."""
    for kind in ("opencl", "cuda"):
        if tvm.runtime.enabled(kind) and tvm.device(kind, 0).exist:
            return kind
    pytest.skip("no GPU on this machine")


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_outputs_outlive_their_model(request: pytest.FixtureRequest, where: str) -> None:
    target = "llvm" if where == "cpu" else request.getfixturevalue("gpu_kind")
    model = operator("Add", target=target)
    outputs = [model.run({"x": values(i)}, device_outputs=True)["y"] for i in range(8)]
    for i in range(8):
        model.run({"x": values(100 + i)})
    del model
    gc.collect()
    other = operator("Relu", target=target)
    for i in range(8):
        other.run({"x": values(200 + i)})
    for i, out in enumerate(outputs):
        np.testing.assert_array_equal(out.numpy(), 2 * values(i))


# ------------------------------------------------------------------------------------- on a GPU


def test_tensors_of_the_device(on_gpu: tvm_edge.CompiledModel, gpu: str) -> None:
    device = tvm.device(gpu, 0)
    on_device = tvm.runtime.tensor(values(), device)
    (placed,) = on_gpu._session.place(on_gpu._bind({"x": on_device}))
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
