"""``precision="bfloat16"`` on CPUs: stored, and multiplied in pairs by AVX512-BF16 and BFDOT."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax

import tvm_edge
from tests.bfloat16 import ARM, AVX2, EPSILON, HAS_PAIRS, ZEN4, kernels, rounded, weights
from tests.onnx_models import make_model, reference, relative_error
from tests.quantized_models import QuantizedGraph
from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.hardware import resolve_target
from tvm_edge.host import CODEGEN_FEATURES
from tvm_edge.runtime import library

RNG = np.random.default_rng(11)

# Input channels, and filters, kernel and attributes of a convolution.
CONVOLUTIONS: dict[str, tuple[int, tuple[int, int, int], dict[str, Any]]] = {
    "few channels": (3, (200, 3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    "odd channels": (37, (257, 1, 1), {}),
    "strided 1x1": (144, (256, 1, 1), {"strides": [2, 2]}),
    "grouped": (64, (64, 3, 3), {"group": 2, "pads": [0, 1, 1, 0]}),
    "dilated": (32, (40, 3, 3), {"dilations": [2, 2]}),
    "oblong": (28, (203, 1, 7), {"pads": [0, 3, 0, 3]}),
}


def convolution(name: str) -> onnx.ModelProto:
    channels, (filters, *kernel), attrs = CONVOLUTIONS[name]
    own = channels // attrs.get("group", 1)
    node = helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", **attrs)
    relu = helper.make_node("Relu", ["c"], ["y"], name="relu")
    values = {"w": weights(filters, own, *kernel), "b": weights(filters, 1)[:, 0]}
    return make_model([node, relu], {"x": (1, channels, 43, 39)}, ["y"], values)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "widened"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_of_rounded_operands(name: str, target: Any) -> None:
    """Float32 convolutions of what bfloat16 holds, but for the order of additions."""
    model = convolution(name)
    compiled = tvm_edge.compile(model, target, precision="bfloat16", tuning_logs=False)
    inputs = {"x": np.random.default_rng().standard_normal(model_shape(model)).astype("float32")}
    (actual,) = compiled.run(inputs).values()
    (expected,) = reference(model, {"x": rounded(inputs["x"])}).values()
    # The last product keeps the digits of its accumulators.
    assert relative_error(actual, expected) < 1e-5
    (unrounded,) = reference(model, inputs).values()
    assert relative_error(actual, unrounded) > EPSILON / 50
    rules = {kernel.rule for kernel in compiled.report.kernels}
    expected_pairs = HAS_PAIRS and target == "llvm"
    if name == "few channels":  # which have no blocks where many cores share an image
        assert expected_pairs or "conv2d_pairs" not in rules
    else:
        assert ("conv2d_pairs" in rules) == expected_pairs


def model_shape(model: onnx.ModelProto) -> list[int]:
    (image,) = (each for each in model.graph.input if each.name == "x")
    return [dim.dim_value for dim in image.type.tensor_type.shape.dim]


def network() -> onnx.ModelProto:
    """Direct, Winograd's and depthwise convolutions, a pool and products of one row."""
    conv = [
        ("stem", "x", (32, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
        ("depthwise", "stem", (32, 1, 3, 3), {"pads": [1] * 4, "group": 32}),
        ("winograd", "depthwise", (128, 32, 3, 3), {"pads": [1] * 4}),
        ("point", "winograd", (40, 128, 1, 1), {}),
    ]
    nodes = [
        helper.make_node("Conv", [x, f"{name}_w"], [name], name=name, **attrs)
        for name, x, _, attrs in conv
    ]
    nodes += [
        helper.make_node("Add", ["point", "shift"], ["added"], name="add"),
        helper.make_node("GlobalAveragePool", ["added"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "d_w"], ["d"], name="large", transB=1),
        helper.make_node("Gemm", ["d", "e_w"], ["e"], name="small", transB=1),
        helper.make_node("Softmax", ["e"], ["y"], name="softmax", axis=1),
    ]
    values = {f"{name}_w": weights(*shape) for name, _, shape, _ in conv}
    values |= {"shift": weights(40, 1, 1), "d_w": weights(96, 40), "e_w": weights(10, 96)}
    return make_model(nodes, {"x": (1, 3, 61, 59)}, ["y", "e"], values)


PRODUCTS = {"stem", "depthwise", "winograd", "point", "large", "small"}


@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "widened"])
def test_a_network_is_that_of_float32_but_for_the_rounding(target: Any) -> None:
    model = network()
    compiled = tvm_edge.compile(model, target, precision="bfloat16", tuning_logs=False)
    info = compiled.report.precision
    assert info is not None and not info.reasons
    assert {n for n in PRODUCTS if info.operators[n] == "bfloat16"} == PRODUCTS
    assert info.operators["softmax"] == "float32"
    assert re.match(r"bfloat16: \d+ of 10 operators on bfloat16, ", info.line())
    inputs = {"x": np.random.default_rng().standard_normal((1, 3, 61, 59)).astype("float32")}
    expected = reference(model, inputs)
    for name, value in compiled.run(inputs).items():
        assert EPSILON / 50 < relative_error(value, expected[name]) < 16 * EPSILON, name
    before = tvm_edge.compile(model, target, tuning_logs=False).report.memory
    after = compiled.report.memory
    assert before is not None and after is not None
    assert after.weights < 0.55 * before.weights
    assert after.activations < 0.55 * before.activations


@pytest.mark.parametrize(
    ("target", "multiplies", "rounds"),
    [(ZEN4, "vdpbf16ps", "vcvtneps2bf16"), (ARM, "bfdot", "bfcvtn")],
    ids=["zen4", "arm"],
)
def test_pairs_are_multiplied_by_the_instruction(
    target: dict[str, Any], multiplies: str, rounds: str
) -> None:
    """On CPUs that have it, also those that this one is not; and vectors are rounded by one."""
    code = kernels(network(), target)
    products = [text for name, text in code.items() if "pairs" in name or "winograd" in name]
    assert len(products) == 3 and all(text.count(f"\t{multiplies}\t") >= 8 for text in products)
    pairs = [text for name, text in code.items() if "pairs" in name]
    assert not any(re.search(r"\t(vfmadd\d+ps|fmla|fmadd)\t", text) for text in pairs)
    assert any("winograd" in name for name in code)
    for name, text in code.items():
        assert not re.search(r"call\S*\s+\S*(truncsfbf|extendbf)", text), name
    (packed,) = (text for name, text in code.items() if "pack" in name and "unpack" not in name)
    assert f"\t{rounds}\t" in packed


def test_a_cpu_without_the_instruction_refuses_an_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = tvm_edge.compile(convolution("few channels"), ZEN4, precision="bfloat16").to_bytes()
    here = (library.host_features() or CODEGEN_FEATURES) - {"avx512bf16"}
    monkeypatch.setattr(library, "host_features", lambda: here)
    with pytest.raises(DeviceUnavailableError, match="avx512bf16"):
        tvm_edge.load(made)


def test_other_cpus_have_no_such_instruction() -> None:
    for text in kernels(network(), AVX2).values():
        assert "bf16" not in text


@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "arithmetic"])
def test_numbers_are_rounded_to_the_nearest_and_nan_stays(target: Any) -> None:
    """Ties to even; infinities, overflow, and NaN whose payload has low bits alone."""
    bits = np.arange(0x3F7F0000, 0x3F7F0000 + 16 * 0x4000, 0x4000, dtype="uint32")
    odd = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x80000000, 0, 0x3F808001]
    values = np.concatenate([bits, np.array(odd, "uint32"), bits + 1]).view("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((len(values),), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            narrow = builder.emit(relax.op.astype(x, "bfloat16"))
            result = builder.emit_output(relax.op.astype(narrow, "float32"))
        builder.emit_func_output(result)
    (actual,) = tvm_edge.compile(builder.get(), target).run({"x": values}).values()
    np.testing.assert_array_equal(actual.view("uint32") & 0xFFFF, 0)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(actual, rounded(values))


def test_what_is_named_stays_float32() -> None:
    options = {"precision": "bfloat16", "precision_exceptions": ["winograd", "Gemm"]}
    found = tvm_edge.compile(network(), "llvm", tuning_logs=False, **options).report.precision
    assert found is not None
    kept = {name for name in PRODUCTS if found.operators[name] == "float32"}
    assert kept == {"winograd", "large", "small"}
    assert found.reasons["winograd"] == "named in precision_exceptions"


def test_large_weights_are_no_exception() -> None:
    """Bfloat16 has the range of float32."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    large = 1e6 * weights(16, 16, 1, 1)
    model = make_model([node], {"x": (1, 16, 8, 8)}, ["y"], {"w": large})
    found = tvm_edge.compile(model, "llvm", precision="bfloat16").report.precision
    assert found is not None and found.operators == {"conv": "bfloat16"}


@pytest.mark.parametrize(("precision", "unit"), [("bfloat16", EPSILON), ("float16", EPSILON / 8)])
def test_an_open_image_is_widened(precision: str, unit: float) -> None:
    """And added up in float32, or in runs where the CPU has float16 arithmetic."""
    if precision == "float16" and resolve_target("llvm").spec.float16:
        unit *= 8
    model = convolution("few channels")
    compiled = tvm_edge.compile(
        model, "llvm", precision=precision, input_shapes={"x": (1, 3, "h", "w")}
    )
    inputs = {"x": RNG.standard_normal((1, 3, 21, 10)).astype("float32")}
    (actual,) = compiled.run(inputs).values()
    (expected,) = reference(convolution_of(model, (21, 10)), inputs).values()
    assert unit / 50 < relative_error(actual, expected) < unit


def convolution_of(model: onnx.ModelProto, size: tuple[int, int]) -> onnx.ModelProto:
    values = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    return make_model(list(model.graph.node), {"x": (1, 3, *size)}, ["y"], values)


def test_gpus_and_int8_models_are_refused() -> None:
    with pytest.raises(InputError, match="use precision='mixed' or 'float16' there") as caught:
        tvm_edge.compile(convolution("odd channels"), "mali-g76", precision="bfloat16")
    assert caught.value.name == "precision"
    graph = QuantizedGraph()
    data = graph.input(1, 16, 8, 8)
    graph.quantized(graph.conv(data, (16, 16, 3, 3)), 0.1)
    with pytest.raises(InputError, match="are int8"):
        tvm_edge.compile(graph.model(), "llvm", precision="bfloat16")
