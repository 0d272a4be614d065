"""Data movement on constants happens at compile time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import transform

from tvm_edge.relay_passes.simplify.fold_constant_views import FoldConstantViews

VALUE = np.arange(6, dtype="float32").reshape(2, 3)


def adding(expr: Callable[[relax.Expr], relax.Expr], shape: tuple[int, ...]) -> tvm.IRModule:
    """``x + expr(VALUE)``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(expr(relax.const(VALUE)))
            result = builder.emit_output(relax.op.add(x, moved))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (lambda c: relax.op.reshape(c, (3, 2)), VALUE.reshape(3, 2)),
        (lambda c: relax.op.reshape(c, (1, -1)), VALUE.reshape(1, 6)),
        (lambda c: relax.op.expand_dims(c, [0, 3]), VALUE[None, :, :, None]),
        (lambda c: relax.op.permute_dims(c), VALUE.T),
        (lambda c: relax.op.permute_dims(c, [1, 0]), VALUE.T),
        (lambda c: relax.op.broadcast_to(c, (4, 2, 3)), np.broadcast_to(VALUE, (4, 2, 3))),
        (lambda c: relax.op.permute_dims(relax.op.reshape(c, (3, 2))), VALUE.reshape(3, 2).T),
        (lambda _: relax.op.squeeze(relax.const(VALUE[:1, :1])), VALUE[0, 0]),
    ],
)
def test_folds(expr: Callable[[relax.Expr], relax.Expr], expected: np.ndarray) -> None:
    folded = tvm.transform.Sequential(
        [
            FoldConstantViews(),
            transform.CanonicalizeBindings(),
            transform.DeadCodeElimination(),
        ]
    )(adding(expr, expected.shape))
    (binding,) = [b for block in folded["main"].body.blocks for b in block.bindings]
    assert binding.value.op.name == "relax.add"
    actual = binding.value.args[1].value.numpy()
    np.testing.assert_array_equal(actual, expected)
    assert actual.shape == expected.shape


def test_leaves_what_depends_on_an_input() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.permute_dims(x))
        builder.emit_func_output(result)
    folded = FoldConstantViews()(builder.get())
    assert "permute_dims" in folded.script()


def test_a_shape_of_constants_is_a_tensor_of_constants() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            numbers = builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([4, 0, 7])))
            row = builder.emit(relax.op.reshape(numbers, (1, 3)))
            result = builder.emit_output(relax.op.add(x, row))
        builder.emit_func_output(result)
    folded = FoldConstantViews()(builder.get())
    *_, added = [b.value for block in folded["main"].body.blocks for b in block.bindings]
    text = folded.script()
    assert "shape_to_tensor" not in text and "reshape" not in text
    values = {b.var: b.value for block in folded["main"].body.blocks for b in block.bindings}
    made = values.get(added.args[1], added.args[1])
    np.testing.assert_array_equal(made.value.numpy(), [[4, 0, 7]])


def test_a_shape_of_the_run_stays() -> None:
    builder = relax.BlockBuilder()
    length = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((length,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.shape_to_tensor(relax.ShapeExpr([length, 2])))
        builder.emit_func_output(result)
    assert "shape_to_tensor" in FoldConstantViews()(builder.get()).script()
