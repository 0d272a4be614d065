"""Relax modules as models."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_edge
from tvm_edge import Dim, InputError, InvalidModelError


def module(*, rows: object = 4, name: str = "main", tuple_param: bool = False) -> tvm.IRModule:
    """``(relu(x) @ w, x + 1)``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 3), "float32"))
    params = [x]
    if tuple_param:
        params.append(relax.Var("t", relax.TupleType([relax.TensorType((1,), "float32")])))
    weight = relax.const(np.arange(6, dtype="float32").reshape(3, 2))
    with builder.function(name, params):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(relax.op.nn.relu(x), weight))
            shifted = builder.emit(relax.op.add(x, relax.const(1.0, "float32")))
            result = builder.emit_output(relax.Tuple([product, shifted]))
        builder.emit_func_output(result)
    return builder.get()


def check(model: tvm_edge.CompiledModel, rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype("float32")
    outputs = model.run({"x": x})
    weight = np.arange(6, dtype="float64").reshape(3, 2)
    np.testing.assert_allclose(
        outputs["output_0"], np.maximum(x, 0).astype("float64") @ weight, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(outputs["output_1"], x + np.float32(1))


def test_static() -> None:
    model = tvm_edge.compile(module(), "llvm")
    assert [str(spec) for spec in model.inputs] == ["x: float32[4, 3]"]
    assert [spec.name for spec in model.outputs] == ["output_0", "output_1"]
    check(model, 4)


def test_symbolic_rows_stay_open() -> None:
    model = tvm_edge.compile(module(rows=tirx.Var("n", "int64")), "llvm")
    assert model.inputs[0].shape == ("n", 3)
    for rows in (4, 1, 9):
        check(model, rows)


def test_symbolic_rows_have_a_range_by_input_shapes() -> None:
    shapes = {"x": (Dim("rows", min=2, max=8, multiple=2), 3)}
    model = tvm_edge.compile(module(rows=tirx.Var("n", "int64")), "llvm", input_shapes=shapes)
    check(model, 6)
    with pytest.raises(InputError, match="takes 2 to 8, multiples of 2"):
        model.run({"x": np.zeros((3, 3), "float32")})


def test_symbolic_rows_are_fixed_by_input_shapes() -> None:
    dynamic = module(rows=tirx.Var("n", "int64"))
    check(tvm_edge.compile(dynamic, "llvm", input_shapes={"x": (7, 3)}), 7)


@pytest.mark.parametrize(
    ("shapes", "fragment"),
    [
        ({"y": (4, 3)}, "known: x"),
        ({"x": (4,)}, "2"),
        ({"x": (4, 5)}, "symbolic"),
        ({"x": (0, 3)}, "positive"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        tvm_edge.compile(module(rows=tirx.Var("n", "int64")), "llvm", input_shapes=shapes)


def test_no_main() -> None:
    with pytest.raises(InvalidModelError, match="main"):
        tvm_edge.compile(module(name="entry"), "llvm")
    with pytest.raises(InvalidModelError, match="main"):
        tvm_edge.compile(tvm.IRModule(), "llvm")


def test_parameters_that_are_not_tensors() -> None:
    with pytest.raises(InvalidModelError, match="'t'"):
        tvm_edge.compile(module(tuple_param=True), "llvm")


def test_malformed() -> None:
    """A variable that nothing defines."""
    x, stray = (relax.Var(n, relax.TensorType((2,), "float32")) for n in ("x", "stray"))
    body = relax.SeqExpr([], stray)
    broken = tvm.IRModule({"main": relax.Function([x], body, x.ty)})
    with pytest.raises(InvalidModelError, match="well-formed"):
        tvm_edge.compile(broken, "llvm")


def test_the_users_module_is_not_changed() -> None:
    mod = module(rows=tirx.Var("n", "int64"))
    before = mod.script(show_meta=True)
    tvm_edge.analyze(mod, "llvm", input_shapes={"x": (7, 3)})
    assert mod.script(show_meta=True) == before
