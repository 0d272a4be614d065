"""Scales and shifts behind convolutions and matrix products disappear, and only there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax
from tvm.relax import transform

from tests.onnx_models import make_model, random_input, relative_error
from tvm_edge.frontend import load_model
from tvm_edge.relay_passes.simplify.fold_affine import FoldAffine
from tvm_edge.relay_passes.simplify.fold_constant_views import FoldConstantViews

GENERATOR = np.random.default_rng(1)


def values(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype("float32")


def norm(name: str, channels: int) -> dict[str, np.ndarray]:
    """The four parameters of a batch normalisation."""
    return {
        f"{name}_g": values(channels),
        f"{name}_b": values(channels),
        f"{name}_m": values(channels),
        f"{name}_v": np.abs(values(channels)) + 0.1,
    }


def norm_node(name: str, data: str, out: str) -> object:
    return helper.make_node(
        "BatchNormalization", [data, *(f"{name}_{p}" for p in "gbmv")], [out], name=name
    )


def folded(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential(
        [
            FoldConstantViews(),
            transform.CanonicalizeBindings(),
            FoldAffine(),
            transform.DeadCodeElimination(),
        ]
    )(mod)


def operators(mod: tvm.IRModule) -> list[str]:
    """Operators of main in order, without the ``relax.`` prefix."""
    return [
        binding.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()


CONV = {"weight": values(6, 3, 3, 3), "bias": values(6)}
SHAPE = {"x": (2, 3, 9, 8)}


def conv(out: str, *, bias: bool = False) -> object:
    inputs = ["x", "weight", *(["bias"] if bias else [])]
    return helper.make_node("Conv", inputs, [out], name="conv")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("nodes", "initializers", "expected"),
    [
        pytest.param(
            [conv("c"), norm_node("n", "c", "y")], norm("n", 6), ["nn.conv2d", "add"], id="conv-bn"
        ),
        pytest.param(
            [conv("c", bias=True), norm_node("n", "c", "y")],
            norm("n", 6),
            ["nn.conv2d", "add"],
            id="conv-bias-bn",
        ),
        pytest.param(
            [conv("c"), norm_node("n", "c", "d"), norm_node("o", "d", "y")],
            {**norm("n", 6), **norm("o", 6)},
            ["nn.conv2d", "add"],
            id="conv-bn-bn",
        ),
        pytest.param(
            [conv("c"), helper.make_node("Mul", ["s", "c"], ["y"], name="mul")],
            {"s": values(6, 1, 1)},
            ["nn.conv2d"],
            id="scale-on-the-left",
        ),
        pytest.param(
            [conv("c"), helper.make_node("Div", ["c", "s"], ["y"], name="div")],
            {"s": np.asarray(3.0, "float32")},
            ["nn.conv2d"],
            id="scalar-divisor",
        ),
        pytest.param(
            [conv("c", bias=True), helper.make_node("Sub", ["c", "s"], ["y"], name="sub")],
            {"s": values(1, 6, 1, 1)},
            ["nn.conv2d", "add"],
            id="shift",
        ),
        pytest.param(
            [conv("c"), helper.make_node("Mul", ["c", "s"], ["y"], name="mul")],
            {"s": values(7, 6)},  # along height and width: no channel factor
            ["nn.conv2d", "multiply"],
            id="spatial-scale-stays",
        ),
        pytest.param(
            [conv("c"), helper.make_node("Div", ["c", "s"], ["y"], name="div")],
            {"s": values(7, 1)},
            ["nn.conv2d", "divide"],
            id="spatial-divisor-stays",
        ),
        pytest.param(
            [
                conv("c"),
                norm_node("n", "c", "d"),
                helper.make_node("Add", ["c", "d"], ["y"], name="add"),
            ],
            norm("n", 6),
            ["nn.conv2d", "multiply", "add", "add"],
            id="convolution-with-two-readers-stays",
        ),
        pytest.param([norm_node("n", "x", "y")], norm("n", 3), ["multiply", "add"], id="bn-alone"),
        pytest.param(
            [
                helper.make_node("Conv", ["x", "dw"], ["c"], name="dw", group=3),
                norm_node("n", "c", "y"),
            ],
            {"dw": values(3, 1, 3, 3), **norm("n", 3)},
            ["nn.conv2d", "add"],
            id="depthwise-bn",
        ),
        pytest.param(
            [
                helper.make_node("MatMul", ["x", "k"], ["c"], name="mm"),
                helper.make_node("Mul", ["c", "s"], ["d"], name="mul"),
                helper.make_node("Add", ["d", "t"], ["y"], name="add"),
            ],
            {"k": values(8, 5), "s": values(5), "t": values(5)},
            ["matmul", "add"],
            id="matmul",
        ),
    ],
)
def test_folding(
    nodes: list[object], initializers: dict[str, np.ndarray], expected: list[str]
) -> None:
    used = {name for node in nodes for name in node.input}
    parameters = {k: v for k, v in {**CONV, **initializers}.items() if k in used}
    module = load_model(make_model(nodes, SHAPE, ["y"], parameters)).module
    after = folded(module)
    assert operators(after) == expected
    x = random_input(SHAPE["x"])
    assert relative_error(run(after, x), run(module, x)) < 1e-5


def test_a_scale_by_zero_variance_keeps_epsilon() -> None:
    parameters = {**norm("n", 6), "weight": CONV["weight"]}
    parameters["n_v"] = np.zeros(6, "float32")
    module = load_model(
        make_model([conv("c"), norm_node("n", "c", "y")], SHAPE, ["y"], parameters)
    ).module
    x = random_input(SHAPE["x"])
    assert relative_error(run(folded(module), x), run(module, x)) < 1e-5


def test_division_by_zero_is_not_folded() -> None:
    model = make_model(
        [conv("c"), helper.make_node("Div", ["c", "s"], ["y"], name="div")],
        SHAPE,
        ["y"],
        {"weight": CONV["weight"], "s": np.zeros((), "float32")},
    )
    assert operators(folded(load_model(model).module)) == ["nn.conv2d", "divide"]


@pytest.mark.parametrize("operator", [relax.op.add, relax.op.subtract, relax.op.multiply])
def test_a_scalar_stays_a_scalar(operator: Callable[..., relax.Expr]) -> None:
    """A kernel that reads it is already made for its rank."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(operator(x, relax.const(np.float32(0.5))))
            result = builder.emit_output(operator(first, relax.const(np.float32(3))))
        builder.emit_func_output(result)
    after = folded(builder.get())
    for block in after["main"].body.blocks:
        assert all(binding.var.ty.ndim == 0 for binding in block.bindings)
