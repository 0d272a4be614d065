"""Weights that are subnormal numbers, which a CPU multiplies slowly, are zero."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import constant_of
from tvm_edge.relay_passes.simplify.flush_subnormals import FlushSubnormals

TINY = float(np.finfo("float32").tiny)


def flushed(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a matrix product, and the same constant where it is added."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((len(weights),) * 2, str(weights.dtype)))
    constant = relax.const(weights, str(weights.dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, constant))
            result = builder.emit_output(relax.op.add(product, constant))
        builder.emit_func_output(result)
    after: tvm.IRModule = FlushSubnormals()(builder.get())
    first, second = (b.value.args[1] for block in after["main"].body.blocks for b in block.bindings)
    values = constant_of(first), constant_of(second)
    assert values[0] is not None and values[1] is not None
    return values[0], values[1]


def test_subnormal_weights_are_zero() -> None:
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    weights[0], weights[1] = [1e-39, -1e-45, TINY / 2, -TINY / 2], [TINY, -TINY, np.nan, np.inf]
    expected = weights.copy()
    expected[0] = 0
    product, sum_ = flushed(weights)
    np.testing.assert_array_equal(product, expected)
    np.testing.assert_array_equal(sum_, weights)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normal_weights_stay(dtype: str) -> None:
    """Those of float16 too, which are normal numbers in the float32 that computes with them."""
    weights = np.full((4, 4), 1e-6, dtype)
    np.testing.assert_array_equal(flushed(weights)[0], weights)


def test_one_at_the_end_of_large_weights() -> None:
    weights = np.ones((300, 300), "float32")
    weights[-1, -1] = 1e-39
    expected = weights.copy()
    expected[-1, -1] = 0
    np.testing.assert_array_equal(flushed(weights)[0], expected)
