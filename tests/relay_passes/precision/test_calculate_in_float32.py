"""Kernels of float16 calculate in float32 and round what they store, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.script import tirx as T

from tests.schedules.harness import this_cpu
from tvm_edge.relay_passes.precision.calculate_in_float32 import (
    CalculateInFloat32,
    calculate_in_float32,
)
from tvm_edge.zoo.evaluate import evaluate

HALF = "float16"
ULP = 2.0**-11  # half a unit in the last place, of 1


def tensor(*shape: int, dtype: str = HALF) -> te.Tensor:
    return te.placeholder(shape, dtype, "x")


def function(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors), "int64")


def run(func: tirx.PrimFunc, values: Sequence[np.ndarray]) -> np.ndarray:
    """The last parameter after a call, on this machine's CPU."""
    result = tvm.runtime.tensor(
        np.zeros([int(d) for d in func.params[-1].shape], str(func.params[-1].dtype))
    )
    with this_cpu():
        built = tvm.compile(func.with_attr("global_symbol", "main"), target=this_cpu())
    built(*(tvm.runtime.tensor(value) for value in values), result)
    return result.numpy()


def arithmetic_types(func: tirx.PrimFunc) -> set[str]:
    """Types of the sums and products in a kernel that are no indices."""
    found: set[str] = set()

    def visit(node: tirx.Add | tirx.Mul) -> None:
        found.add(str(node.ty.dtype))

    tvm_ffi.structural_walk(func.body, ((tirx.Add, tirx.Mul), visit))
    return {dtype for dtype in found if dtype.startswith("float")}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(HALF)


def test_sums_do_not_stand_still() -> None:
    """In float16, 0.1 added to 256 is 256."""
    x = tensor(1, 20000)
    func = function(x, topi.sum(x, axis=1))
    values = np.full((1, 20000), 0.1, HALF)
    expected = values.astype("float64").sum(axis=1)
    assert run(func, [values])[0] < 0.9 * expected[0]
    actual = run(calculate_in_float32(func), [values])
    assert abs(actual[0] - expected[0]) <= ULP * expected[0]


def test_a_chain_rounds_once() -> None:
    x = tensor(4, 33)
    y = topi.multiply(topi.add(topi.multiply(x, tirx.const(3.7, HALF)), x), topi.sigmoid(x))
    values = random(4, 33)
    wide = values.astype("float64")
    expected = (wide * 3.7 + wide) / (1 + np.exp(-wide))  # a literal keeps its digits too
    func = calculate_in_float32(function(x, y))
    assert arithmetic_types(func) == {"float32"}
    # A result that lies in the middle between two may go either way; twice rounded, half of all do.
    assert (run(func, [values]) != expected.astype(HALF)).mean() < 0.02


def test_a_convolution_with_its_tail() -> None:
    x, w, b = tensor(1, 37, 9, 11), te.placeholder((5, 37, 3, 3), HALF), tensor(1, 5, 1, 1)
    conv = topi.nn.conv(x, w, [2, 1], [1, 0, 1, 2], [1, 1], 1, "NCHW", "OIHW", HALF)
    func = calculate_in_float32(function(x, w, b, topi.nn.relu(topi.add(conv, b))))
    values = [random(1, 37, 9, 11), random(5, 37, 3, 3, seed=1), random(1, 5, 1, 1, seed=2)]
    wide = [value.astype("float64") for value in values]
    (sums,) = evaluate("Conv", wide[:2], strides=[2, 1], pads=[1, 0, 1, 2])
    expected = np.maximum(sums + wide[2], 0)
    assert np.abs(run(func, values) - expected).max() <= 1.01 * ULP * expected.max()


def test_a_conversion_that_the_model_asks_for_rounds() -> None:
    x = tensor(7, 5, dtype="float32")
    func = calculate_in_float32(function(x, topi.cast(topi.cast(x, HALF), "float32")))
    values = np.random.default_rng(3).standard_normal((7, 5)).astype("float32")
    actual = run(func, [values])
    assert np.array_equal(actual, values.astype(HALF).astype("float32"))
    assert not np.array_equal(actual, values)


def test_an_arg_maximum() -> None:
    x = tensor(6, 50)
    func = calculate_in_float32(function(x, topi.argmax(x, axis=1)))
    values = random(6, 50)
    assert np.array_equal(run(func, [values]), values.argmax(axis=1))


MOVES: dict[str, Callable[[te.Tensor], te.Tensor]] = {
    "transpose": topi.transpose,
    "pad": lambda x: topi.nn.pad(x, [1, 2], [0, 3], pad_value=-1.5),
    "concatenate": lambda x: topi.concatenate([x, x], 1),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
def test_what_moves_is_not_converted(move: Callable[[te.Tensor], te.Tensor]) -> None:
    x = tensor(3, 4)
    found = []
    func = calculate_in_float32(function(x, move(x)))
    tvm_ffi.structural_walk(func.body, (tirx.Cast, lambda cast: found.append(str(cast.ty.dtype))))
    assert not [dtype for dtype in found if dtype.startswith("float")]


@T.prim_func(s_tir=True)
def bits(a: T.Buffer((8,), "float16"), b: T.Buffer((8,), "uint16")):
    for i in range(8):
        with T.sblock("bits"):
            v = T.axis.spatial(8, i)
            b[v] = T.reinterpret("uint16", a[v])


def test_a_kernel_that_looks_at_bits_stays() -> None:
    assert calculate_in_float32(bits) is bits


def test_kernels_for_the_cpu_beside_a_gpu_stay() -> None:
    x = tensor(4, 5)
    func = function(x, topi.sum(x, axis=1))
    here = func.with_attr("target", tvm.target.Target("llvm"))
    mod = CalculateInFloat32("opencl")(tvm.IRModule({"here": here, "there": func}))
    assert arithmetic_types(mod["here"]) == {HALF}
    assert arithmetic_types(mod["there"]) == {"float32"}
