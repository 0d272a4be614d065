"""``precision="float16"`` and ``"mixed"`` on CPUs: stored as float16, calculated in float32."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import tirx

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error
from tests.quantized_models import QuantizedGraph
from tests.schedules.harness import block_names
from tvm_edge.compiler.compilation import begin
from tvm_edge.compiler.driver import PIPELINE
from tvm_edge.compiler.options import Options
from tvm_edge.errors import InputError

HALVES = ("float16", "mixed")
ULP = 2.0**-11  # of float16, relative

X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
RNG = np.random.default_rng(3)


# Of one element, or four of them.
_SINGLE = r"vcvtp(h2ps|s2ph)\s(?!.*[yz]mm)"


def weights(*shape: int) -> np.ndarray:
    """Weights that keep the size of what they are multiplied with."""
    scale = 1 / np.sqrt(np.prod(shape[1:]))
    return (scale * RNG.standard_normal(shape)).astype("float32")


def network(outputs: Sequence[str] = ("y", "e", "up")) -> onnx.ModelProto:
    """Each algorithm of convolutions, a pool, a large and a small product; awkward lengths."""
    conv = [
        ("stem", "x", (24, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
        ("point", "r", (40, 24, 1, 1), {}),
        ("depthwise", "point", (40, 1, 3, 3), {"pads": [1] * 4, "group": 40}),
        ("bare", "depthwise", (40, 1, 3, 3), {"group": 40}),
        ("winograd", "bare", (64, 40, 3, 3), {"pads": [1] * 4}),
        ("strided", "sum", (33, 64, 3, 3), {"pads": [0, 1, 1, 0], "strides": [2, 2]}),
        ("gathered", "sum", (64, 64, 1, 1), {"strides": [2, 2]}),
    ]
    nodes = {
        name: helper.make_node("Conv", [x, f"{name}_w", f"{name}_b"], [name], name=name, **attrs)
        for name, x, _, attrs in conv
    }
    values = {f"{name}_w": weights(*shape) for name, _, shape, _ in conv}
    values |= {f"{name}_b": weights(shape[0], 1)[:, 0] for name, _, shape, _ in conv}
    values |= {"up_w": weights(33, 20, 2, 2), "d_w": weights(256, 64 * 49), "e_w": weights(10, 256)}
    ordered = [
        nodes["stem"],
        helper.make_node("Relu", ["stem"], ["r"], name="relu"),
        *(nodes[name] for name in ("point", "depthwise", "bare", "winograd")),
        helper.make_node("Add", ["winograd", "winograd"], ["sum"], name="sum"),
        nodes["strided"],
        helper.make_node("ConvTranspose", ["strided", "up_w"], ["up"], name="up", strides=[2, 2]),
        nodes["gathered"],
        helper.make_node(
            "MaxPool", ["gathered"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "d_w"], ["d"], name="large", transB=1),
        helper.make_node("Gemm", ["d", "e_w"], ["e"], name="small", transB=1),
        helper.make_node("Softmax", ["e"], ["y"], name="softmax", axis=1),
    ]
    return make_model(ordered, {"x": (1, 3, 61, 59)}, outputs, values)


PRODUCTS = frozenset("stem point depthwise bare winograd strided gathered up large small".split())


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return network()


@pytest.mark.parametrize("target", ["llvm", X86 | {"mcpu": "haswell"}], ids=["here", "avx2"])
def test_results_are_those_of_float32_but_for_the_rounding(
    model: onnx.ModelProto, target: Any
) -> None:
    halved = tvm_edge.compile(model, target, precision="float16", tuning_logs=False)
    found = halved.report.precision
    assert found is not None and not found.reasons
    assert {name for name in PRODUCTS if found.operators[name] == "float16"} == PRODUCTS
    assert found.operators["softmax"] == "float32"
    inputs = {"x": np.random.default_rng().standard_normal((1, 3, 61, 59)).astype("float32")}
    expected = reference(model, inputs)
    for name, value in halved.run(inputs).items():
        error = relative_error(value, expected[name])
        # Each layer rounds its weights and its result, and Winograd's filters once more.
        assert ULP / 50 < error < 16 * ULP, name


def test_weights_and_memory_are_half() -> None:
    whole, half = (
        tvm_edge.compile(network(["y"]), "llvm", precision=precision, tuning_logs=False)
        for precision in ("float32", "float16")
    )
    before, after = whole.report.memory, half.report.memory
    assert before is not None and after is not None
    assert after.weights < 0.55 * before.weights
    assert after.activations < 0.55 * before.activations
    assert len(half.to_bytes()) < 0.65 * len(whole.to_bytes())  # the code stays


def scheduled(model: onnx.ModelProto, target: Any) -> list[tirx.PrimFunc]:
    """Kernels of a model in float16."""
    options = Options(precision="float16")
    done = PIPELINE.part(until="ConcatInPlace").run(begin(model, target, options))
    return [func for func in done.module.functions.values() if isinstance(func, tirx.PrimFunc)]


@pytest.mark.parametrize(
    ("target", "widens", "narrows", "scalar"),
    [
        (X86 | {"mcpu": "haswell"}, "vcvtph2ps", "vcvtps2ph", _SINGLE),
        (X86 | {"mcpu": "skylake-avx512"}, "vcvtph2ps", "vcvtps2ph", _SINGLE),
        (ARM | {"mcpu": "cortex-a53"}, "fcvtl", "fcvtn", r"\sfcvt\s"),
    ],
    ids=["f16c", "avx512", "neon"],
)
def test_conversions_are_of_vectors(target: Any, widens: str, narrows: str, scalar: str) -> None:
    """No call of a library, and of single elements next to none."""
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4, strides=[2, 2])
    nodes = [
        conv,
        helper.make_node("Conv", ["c", "v"], ["d"], name="depth", group=32, pads=[1] * 4),
        helper.make_node("Conv", ["d", "u"], ["e"], name="point"),
        helper.make_node("GlobalAveragePool", ["e"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "g"], ["y"], name="gemm"),
    ]
    values = {"w": weights(32, 32, 3, 3), "v": weights(32, 1, 3, 3), "u": weights(64, 32, 1, 1)}
    small = make_model(nodes, {"x": (1, 32, 24, 24)}, ["y"], values | {"g": weights(64, 640)})
    for func in scheduled(small, target):
        named = func.with_attr("global_symbol", "main")
        built = tvm.compile(named, target=tvm.target.Target(target))
        code = str(built.mod.inspect_source("asm"))
        assert not re.search(r"(call|bl|jmp)\s+\S*(extendhf|truncsfhf|gnu_[hf]2)", code)
        converting = [line for line in code.splitlines() if re.search(rf"{widens}|{narrows}", line)]
        assert converting, func
        single = [line for line in code.splitlines() if re.search(scalar, line)]
        assert len(single) <= len(converting) // 4, "\n".join(single)
        names = block_names(func)
        if "conv2d_blocked_update" in names:
            # Of a convolution that reads float16 itself each pixel is converted for each filter.
            assert names & {"widened", "padded"}, func


def test_mixed_loses_to_float32_never_by_its_estimate(model: onnx.ModelProto) -> None:
    """A product whose matrix is read once is halved; convolutions that calculate are not."""
    target = X86 | {"mcpu": "haswell"}
    found = tvm_edge.compile(model, target, precision="mixed", tuning_logs=False).report.precision
    assert found is not None and 0 < found.estimated_us < found.float32_us
    assert found.operators["large"] == "float16"
    kept = {name for name in PRODUCTS if found.operators[name] == "float32"}
    assert {"strided", "depthwise"} <= kept
    assert all(
        re.search(r"by the estimate .* in float16, .* in float32", found.reasons[name])
        for name in kept
    )


def test_what_is_named_stays_float32(model: onnx.ModelProto) -> None:
    options = {"precision": "float16", "precision_exceptions": ["winograd", "Gemm"]}
    found = tvm_edge.compile(model, "llvm", tuning_logs=False, **options).report.precision
    assert found is not None
    assert {name for name in PRODUCTS if found.operators[name] == "float32"} == {
        "winograd",
        "large",
        "small",
    }
    assert found.reasons["winograd"] == "named in precision_exceptions"


@pytest.mark.parametrize("precision", HALVES)
def test_an_int8_model_is_refused(precision: str) -> None:
    graph = QuantizedGraph()
    data = graph.input(1, 16, 8, 8)
    graph.quantized(graph.conv(data, (16, 16, 3, 3)), 0.1)
    with pytest.raises(InputError, match="are int8") as caught:
        tvm_edge.compile(graph.model(), "llvm", precision=precision)
    assert caught.value.name == "precision"
