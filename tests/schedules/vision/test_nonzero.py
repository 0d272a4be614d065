"""What is not zero is found, in the order of memory, as NumPy and ONNX Runtime have it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

import tvm_edge
from tests.marks import sampled
from tests.onnx_models import make_model, reference
from tests.schedules.vision.harness import (
    DTYPES,
    MACHINES,
    Machine,
    machine,
    numbers,
    run_kernel,
    run_operator,
)
from tvm_edge.schedules.vision.nonzero import count_nonzero, nonzero_indices


def check(on: Machine, data: np.ndarray) -> None:
    """Count, then fill a result of that length."""
    shape, dtype = data.shape, str(data.dtype)
    expected = np.stack(np.nonzero(data))
    result_shape, found, *_ = run_kernel(on, count_nonzero(shape, dtype, on.spec), data)
    np.testing.assert_array_equal(result_shape, expected.shape)
    fill = nonzero_indices(shape, dtype, on.spec)
    (indices,) = run_kernel(on, fill, data, found, shapes=[expected.shape])
    np.testing.assert_array_equal(indices, expected)
    assert indices.dtype == np.int64


def some(seed: int, shape: tuple[int, ...], dtype: str, zeros: float = 0.5) -> np.ndarray:
    """Numbers of any bits, but subnormal ones, which are zero to a CPU, and zeros of both signs."""
    data = numbers(seed, shape, dtype)
    if dtype.startswith("float"):
        data[np.abs(data) < np.finfo(dtype).smallest_normal] = 1
    where = np.random.default_rng(seed).random(shape) < zeros
    data[where] = -data.dtype.type(0) if dtype.startswith("float") else 0
    return data


SHAPES = ((1,), (7, 1, 130), (3, 5, 7, 11), (20_001,))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Machine, shape: tuple[int, ...]) -> None:
    check(device, some(prod(shape), shape, "float32"))


@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_whole_work_groups(name: str) -> None:
    check(machine(name, 256), some(0, (300, 41), "int32", zeros=0.9))


TYPES = [
    *sampled([("llvm", dtype) for dtype in DTYPES], 3),
    *((name, dtype) for name in MACHINES[1::2] for dtype in ("float16", "float64", "bool")),
]


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_types(name: str, dtype: str) -> None:
    """NaN is not zero and -0 is."""
    on = machine(name)
    if not on.has(dtype):
        pytest.skip(f"no {dtype} on this device")
    check(on, some(1, (9, 8), dtype))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("value", [0, 1], ids=["nothing", "everything"])
def test_nothing_and_everything(device: Machine, value: int) -> None:
    check(device, np.full((40, 17), value, "int8"))


KINDS = (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("kind", KINDS, ids=["float32", "bool", "int64"])
@pytest.mark.parametrize("shape", [(), (5,), (4, 1, 300)], ids=str)
def test_onnx(shape: tuple[int, ...], kind: int) -> None:
    """Of a scalar too; twice, as what is found changes from run to run."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    dtypes = {"x": kind, "y": TensorProto.INT64}
    model = make_model([node], {"x": shape}, ["y"], dtypes=dtypes)
    compiled = tvm_edge.compile(model, "llvm")
    assert {kernel.device for kernel in compiled.report.kernels} == {"llvm"}
    dtype = str(np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
    for seed in (0, 1):
        feeds = {"x": some(seed, shape or (1,), dtype, zeros=seed / 2).reshape(shape)}
        actual, expected = compiled.run(feeds)["y"], reference(model, feeds)["y"]
        np.testing.assert_array_equal(actual, expected)


def test_what_was_found_is_searched() -> None:
    """Of a tensor whose length is known in the run alone."""

    def build(x: relax.Var) -> relax.Expr:
        return relax.op.nonzero(relax.op.nonzero(x))

    data = some(2, (6, 70), "float32")
    (actual,) = run_operator("llvm", build, data)
    np.testing.assert_array_equal(actual, np.stack(np.nonzero(np.stack(np.nonzero(data)))))
