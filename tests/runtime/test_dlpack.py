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
from tests.runtime.arrays import (
    CPU,
    CUDA,
    SHAPE,
    OldProducer,
    Producer,
    aligned,
    operator,
    placed_inputs,
    values,
)
from tvm_edge import InputError


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
        (placed,) = placed_inputs(doubled, {"x": value})
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
