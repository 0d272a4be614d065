"""ConvInteger, MatMulInteger and what is built of them: dot products, exactly as ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper

import tvm_edge
from tests.frontend.single import single
from tests.marks import in_full
from tests.onnx_models import make_model, reference
from tests.quantized_models import numbers
from tvm_edge.compiler.driver import unmerged_kernels
from tvm_edge.hardware import resolve_target

pytestmark = pytest.mark.skipif(
    not resolve_target("llvm").spec.dot_product, reason="this CPU has no dot products of 8 bits"
)

INT8 = {"conv2d_int8", "depthwise_int8"}


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> tvm_edge.CompiledModel:
    """By dot products, and equal."""
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    assert sum(kernel.rule in INT8 for kernel in compiled.report.kernels) == 1
    ours = compiled.run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_array_equal(ours[name], expected, name)
    return compiled


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "padded": ((2, 24, 7, 9), (40, 24, 3, 3), {"pads": [1, 2, 0, 1]}),
    "strided, dilated": (
        (1, 16, 11, 13),
        (16, 16, 3, 3),
        {"pads": [2, 2, 2, 0], "strides": [2, 1], "dilations": [1, 2]},
    ),
    "few channels": ((1, 3, 9, 9), (16, 3, 5, 5), {"pads": [2, 2, 2, 2]}),
    "depthwise": ((1, 32, 6, 7), (32, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 32}),
    "not padded": ((1, 48, 5, 6), (24, 48, 1, 1), {}),
}


@pytest.mark.parametrize("zero_is_known", [False, *in_full(True)])
@pytest.mark.parametrize(
    "name", ["padded", *in_full(*(name for name in CONVOLUTIONS if name != "padded"))]
)
def test_convolutions(name: str, zero_is_known: bool) -> None:
    """With the image's zero point known, or in a run alone; filters of int8."""
    image, filters, attributes = CONVOLUTIONS[name]
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attributes)
    x, zero = numbers(image, "uint8"), np.asarray(201, "uint8")
    constants = {"w": numbers(filters, "int8", 1), "wz": np.asarray(0, "int8")}
    given = {"x": x}
    (constants if zero_is_known else given)["xz"] = zero
    check(single(node, given, constants, outputs={"y": TensorProto.INT32}), given)


@pytest.mark.parametrize("zero", [0, *in_full(93)])
def test_filters_beyond_int8_are_moved(zero: int) -> None:
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 0, 1, 2])
    inputs = {"x": numbers((1, 24, 6, 5), "uint8"), "xz": np.asarray(77, "uint8")}
    constants = {"w": numbers((36, 24, 3, 2), "uint8", 1), "wz": np.asarray(zero, "uint8")}
    check(single(node, inputs, constants, outputs={"y": TensorProto.INT32}), inputs)


@pytest.mark.parametrize(
    ("a_type", "b_type", "shape"),
    [
        ("uint8", "int8", (5, 40)),
        *in_full(("int8", "uint8", (1, 40)), ("int8", "int8", (2, 3, 40))),
    ],
)
def test_products(a_type: str, b_type: str, shape: tuple[int, ...]) -> None:
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    a = numbers(shape, a_type)
    constants = {
        "b": numbers((40, 56), b_type, 1),
        "az": np.asarray(17, a_type),
        "bz": numbers((56,), b_type, 2),
    }
    check(single(node, {"a": a}, constants, outputs={"y": TensorProto.INT32}), {"a": a})


@pytest.mark.full
def test_zero_points_of_rows() -> None:
    """QLinearMatMul with zero points, and therefore scales, for each row."""
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    a = numbers((6, 40), "uint8")
    constants = {
        "as": np.linspace(0.01, 0.03, 6, dtype="float32"),
        "az": numbers((6,), "uint8", 3),
        "b": numbers((40, 24), "uint8", 1),
        "bs": np.asarray(0.02, "float32"),
        "bz": np.asarray(131, "uint8"),
        "ys": np.full(6, 0.9, "float32"),
        "yz": np.full(6, 120, "uint8"),
    }
    model = single(node, {"a": a}, constants, outputs={"y": TensorProto.UINT8})
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    assert any(kernel.rule in INT8 for kernel in compiled.report.kernels)
    real = (a.astype("int64") - constants["az"][:, None]) @ (constants["b"].astype("int64") - 131)
    scale = constants["as"] * np.float32(0.02) / np.float32(0.9)
    steps = np.rint(real * scale[:, None].astype("float64")) + 120
    apart = np.abs(compiled.run({"a": a})["y"].astype("int64") - np.clip(steps, 0, 255))
    assert apart.max() <= 1 and np.mean(apart) < 0.01


def test_a_dynamically_quantised_network() -> None:
    """As ONNX Runtime's ``quantize_dynamic`` writes it, a convolution and a dense layer."""
    weights = {
        "w": numbers((24, 16, 3, 3), "int8", 1),
        "wz": np.asarray(0, "int8"),
        "ws": np.asarray(0.004, "float32"),
        "v": numbers((24, 40), "int8", 2),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        helper.make_node("ConvInteger", ["xq", "w", "xz", "wz"], ["a"], pads=[1] * 4),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["xs", "ws"], ["s"]),
        helper.make_node("Mul", ["b", "s"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("DynamicQuantizeLinear", ["f"], ["fq", "fs", "fz"]),
        helper.make_node("MatMulInteger", ["fq", "v", "fz", "wz"], ["g"]),
        helper.make_node("Cast", ["g"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["h", "fs"], ["y"]),
    ]
    model = make_model(nodes, {"x": (2, 16, 9, 8)}, ["y"], weights)
    x = np.random.default_rng(5).standard_normal((2, 16, 9, 8)).astype("float32")
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    assert sum(kernel.rule in INT8 for kernel in compiled.report.kernels) == 2
    expected = reference(model, {"x": x})["y"]
    # A number that lies between two may be rounded to either.
    apart = np.abs(compiled.run({"x": x})["y"] - expected).max()
    assert apart <= 5e-3 * np.abs(expected).max()
    code = assembly(model)
    assert code.count("vpdpbusd") + code.count("sdot") >= 9
    assert "vpmulld" not in code


def assembly(model: onnx.ModelProto) -> str:
    """Return the assembly of the int8 kernels."""
    scheduled, resolved = unmerged_kernels(model, "llvm")
    functions = {
        str(name.name_hint): func.with_attr("global_symbol", str(name.name_hint))
        for name, func in scheduled.functions_items()
        if "_int8" in str(name.name_hint)
    }
    built = tvm.compile(tvm.IRModule(functions), target=resolved.target)
    return str(built.mod.inspect_source("asm"))


def test_what_has_no_constant_weights_is_calculated_in_int32() -> None:
    """Nor few filters, nor filters of groups beyond int8."""
    product = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    inputs = {"a": numbers((5, 40), "uint8"), "b": numbers((40, 24), "uint8", 1)}
    few = helper.make_node("ConvInteger", ["x", "w"], ["y"])
    grouped = helper.make_node("ConvInteger", ["x", "w"], ["y"], group=16)
    image = {"x": numbers((1, 16, 4, 5), "uint8")}
    int32 = {"y": TensorProto.INT32}
    for model, given in (
        (single(product, inputs, {}, outputs=int32), inputs),
        (single(few, image, {"w": numbers((5, 16, 3, 3), "int8")}, outputs=int32), image),
        (single(grouped, image, {"w": numbers((16, 1, 3, 3), "uint8")}, outputs=int32), image),
    ):
        compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
        assert not any(kernel.rule in INT8 for kernel in compiled.report.kernels)
        np.testing.assert_array_equal(compiled.run(given)["y"], reference(model, given)["y"])
