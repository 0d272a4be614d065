"""Kernels of float16 on GPUs, against NumPy's float64 of the rounded operands.

They need a device with float16. Without a GPU that is Intel's OpenCL runtime for CPUs
(``pip install intel-opencl-rt intel-cmplr-lib-rt``), whose libraries have to be found when a
process starts: :func:`test_on_intels_runtime` runs this file again in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import in_full, sampled
from tests.onnx_models import make_model
from tests.opencl.support import child_environment
from tests.schedules.gpu.harness import ORIN, gpu_functions
from tests.schedules.gpu.intel_runtime import HOW_TO_GET_ONE, intel_environment
from tvm_edge.compiler import graph_passes
from tvm_edge.compiler.driver import compile_with
from tvm_edge.compiler.precision_choice import PrecisionChoice
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
from tvm_edge.relay_passes.precision.calculate_in_float32 import calculate_in_float32
from tvm_edge.relay_passes.precision.round_weights import round_weights
from tvm_edge.schedules.base import PRECISION, Scheduled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu import schedule
from tvm_edge.zoo.evaluate import evaluate

Array = NDArray[Any]

HALF_ULP = 2.0**-11  # of float16, relative
FLOAT32 = 1e-5  # of the largest value, see tests.schedules.harness.TOLERANCE
# Terms that precision="float16" adds up in float16: a step of a tile, or a window.
MOST_TERMS = 25

_CHILD = "TVM_EDGE_TEST_FLOAT16_CHILD"
RNG = np.random.default_rng(7)


def values(*shape: int, dtype: str = "float32") -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def rounded(array: Array) -> Array:
    """Round an array to float16, and return it as float64."""
    return array.astype("float16").astype("float64")


@pytest.fixture
def half(gpu: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of GPU whose device calculates in float16, and nothing stays float32 by estimate."""
    if not resolve_target(gpu).spec.float16:
        pytest.skip(f"{resolve_target(gpu).spec.name} has no float16")
    monkeypatch.setattr(graph_passes, "choose_precision", lambda *_: PrecisionChoice())
    return gpu


@pytest.mark.parametrize("marked", ["not full", *in_full("full")])
@pytest.mark.skipif(_CHILD in os.environ, reason="this is that process")
def test_on_intels_runtime(tmp_path: Path, marked: str) -> None:
    changes = intel_environment(tmp_path)
    if changes is None:
        pytest.skip(f"no float16 on a CPU: {HOW_TO_GET_ONE}")
    environment = child_environment({**changes, _CHILD: "1"})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", "opencl", "-m", marked],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) > 10 and "skipped" not in done.stdout, done.stdout


# --------------------------------------------------------------------------- one product, any form


def conv(shape: tuple[int, ...], filters: tuple[int, ...], **attributes: Any) -> tuple[Any, ...]:
    return "Conv", values(*shape), values(*filters), attributes


def matmul(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Any, ...]:
    return "MatMul", values(*left), values(*right), {}


PRODUCTS = {
    "3x3": conv((1, 17, 7, 7), (20, 17, 3, 3), pads=[1, 1, 1, 1]),
    "dilated": conv((1, 12, 11, 9), (8, 12, 3, 3), dilations=[2, 2], pads=[2, 1, 0, 2]),
    "strided": conv((2, 9, 13, 11), (33, 9, 3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    "groups": conv((1, 24, 8, 8), (48, 8, 3, 3), group=3, pads=[1, 1, 1, 1]),
    "depthwise": conv((1, 19, 9, 7), (19, 1, 5, 5), group=19, pads=[2, 2, 2, 2]),
    "pointwise": conv((1, 40, 6, 6), (24, 40, 1, 1)),
    "parts": conv((1, 256, 7, 7), (64, 256, 3, 3), pads=[1, 1, 1, 1]),
    "matrix": matmul((1, 300), (300, 77)),
    "batch": matmul((3, 17, 21), (3, 21, 20)),
}


def stored_weights(kind: str, weights: Array) -> Array:
    """Constant weights as the compiler stores them (tests/relay_passes/precision)."""
    window = kind == "Conv" and weights.shape[2:] != (1, 1)
    axes = [2, 3] if window else [1] if kind == "Conv" else [weights.ndim - 2]
    return round_weights(weights, axes).astype("float64")


def product_model(kind: str, data: Array, weights: Array, attributes: Any) -> onnx.ModelProto:
    nodes = [helper.make_node(kind, ["x", "w"], ["y"], name="product", **attributes)]
    return make_model(nodes, {"x": data.shape}, ["y"], {"w": weights})


def exact(kind: str, data: Array, weights: Array, attributes: Any) -> Array:
    """In float64."""
    if kind == "MatMul":
        return data @ weights
    (result,) = evaluate("Conv", [data, weights], **{"pads": [0] * 4, **attributes})
    return result


@pytest.mark.parametrize("name", sampled(list(PRODUCTS), 4))
def test_mixed_adds_up_in_float32(name: str, half: str, large_gpu: None) -> None:
    """The last product's result is float32: off by what float32 sums are, not float16's."""
    kind, data, weights, attributes = PRODUCTS[name]
    model = product_model(*PRODUCTS[name])
    compiled = tvm_edge.compile(model, half, precision="mixed", fallback="none")
    expected = exact(kind, rounded(data), stored_weights(kind, weights), attributes)
    actual = compiled.run({"x": data})["y"]
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() <= FLOAT32 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["strided", *in_full("3x3", "groups", "depthwise", "matrix")])
def test_rules_for_devices_without_local_memory(name: str, half: str, small_gpu: None) -> None:
    if resolve_target(half).spec.local_memory_kind == "dedicated":
        pytest.skip("its local memory is on the chip")
    kind, data, weights, attributes = PRODUCTS[name]
    model = product_model(*PRODUCTS[name])
    compiled = tvm_edge.compile(model, half, precision="mixed", fallback="none")
    assert "tiled" not in [kernel.rule for kernel in compiled.report.kernels]
    expected = exact(kind, rounded(data), stored_weights(kind, weights), attributes)
    actual = compiled.run({"x": data})["y"]
    assert np.abs(actual - expected).max() <= FLOAT32 * np.abs(expected).max()


@pytest.mark.parametrize("name", sampled(list(PRODUCTS), 3))
def test_float16_adds_up_few_terms(name: str, half: str, large_gpu: None) -> None:
    """Each term and each sum of a step may be off by half a unit: (terms + 1) of them in all."""
    kind, data, weights, attributes = PRODUCTS[name]
    model = product_model(*PRODUCTS[name])
    compiled = tvm_edge.compile(model, half, precision="float16", fallback="none")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    expected = exact(kind, rounded(data), stored_weights(kind, weights), attributes)
    magnitudes = exact(
        kind, np.abs(rounded(data)), np.abs(stored_weights(kind, weights)), attributes
    )
    error = np.abs(compiled.run({"x": data})["y"] - expected)
    bound = ((1 + HALF_ULP) ** (MOST_TERMS + 1) - 1) * magnitudes + FLOAT32 * magnitudes.max()
    assert (error <= bound).all()
    if "tiled" in rules and half == "opencl":
        assert error.max() > 1e-4 * np.abs(expected).max(), "float16 was not multiplied in"


# ------------------------------------------------------------------------------------ whole graphs


def residual() -> tuple[onnx.ModelProto, Callable[[Array], Array]]:
    """A strided stem, a pool, a residual block with a depthwise branch, a concatenation, an end."""
    shapes = {
        "w0": (24, 3, 3, 3),
        "w1": (40, 24, 3, 3),
        "w2": (40, 1, 3, 3),
        "w3": (40, 40, 1, 1),
        "w4": (10, 57, 3, 3),
        "w5": (17, 40, 1, 1),
    }
    weights = {k: values(*s) / np.float32(np.sqrt(np.prod(s[1:]))) for k, s in shapes.items()}
    bias = {"b1": values(40)}
    pads = {"pads": [1, 1, 1, 1]}
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], **pads}
    steps = [
        ("Conv", ["x", "w0"], "c0", {"strides": [2, 2], **pads}),
        ("Relu", ["c0"], "r0", {}),
        ("MaxPool", ["r0"], "p", pool),
        ("Conv", ["p", "w1", "b1"], "c1", pads),
        ("Conv", ["c1", "w2"], "c2", {"group": 40, **pads}),
        ("Conv", ["c2", "w3"], "c3", {}),
        ("Add", ["c1", "c3"], "s", {}),
        ("Relu", ["s"], "r1", {}),
        ("Conv", ["r1", "w5"], "c5", {}),
        ("Concat", ["r1", "c5"], "k", {"axis": 1}),
        ("Conv", ["k", "w4"], "y", {"strides": [2, 1], **pads}),
    ]
    nodes = [helper.make_node(k, i, [o], name=o, **a) for k, i, o, a in steps]
    model = make_model(nodes, {"x": (1, 3, 29, 31)}, ["y"], {**weights, **bias})
    # What kernels store: behind the tails that are fused.
    stored = {"r0", "p", "c1", "c2", "r1", "c5", "k"}

    def expected(x: Array) -> Array:
        env = {"x": rounded(x), **{k: stored_weights("Conv", v) for k, v in weights.items()}}
        env |= {k: v.astype("float64") for k, v in bias.items()}
        for kind, inputs, output, attributes in steps:
            more = {"pads": [0] * 4} if kind == "Conv" else {}
            arguments = [env[name] for name in inputs]
            (result,) = evaluate(kind, arguments, **{**more, **attributes})
            env[output] = rounded(result) if output in stored else result
        return env["y"]

    return model, expected


@pytest.mark.parametrize("device", ["large_gpu", "as it is", *in_full("small_gpu")])
def test_a_graph_rounds_what_its_kernels_store(
    device: str, half: str, request: pytest.FixtureRequest
) -> None:
    """And nothing else: bias, residual sum and ReLU are float32 inside of a kernel.

    float32 sums in another order let some elements round the other way, by a unit each.
    """
    if device != "as it is":
        request.getfixturevalue(device)
    model, expected = residual()
    x = values(1, 3, 29, 31)
    compiled = tvm_edge.compile(model, half, precision="mixed", fallback="none")
    wanted = expected(x)
    error = np.abs(compiled.run({"x": x})["y"] - wanted)
    assert error.max() <= HALF_ULP * np.abs(wanted).max()
    assert np.median(error) <= 0.1 * HALF_ULP * np.abs(wanted).max()


@pytest.mark.parametrize("m", [4, *in_full(2)])
def test_winograd_of_float16_images(m: int, half: str, large_gpu: None) -> None:
    """Transforms and products in float32: as good as a direct sum."""
    first, second = values(21, 33, 3, 3), values(6, 21, 1, 1)
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w0"], ["c"], name="c", pads=[1, 1, 1, 0]),
            helper.make_node("Conv", ["c", "w1"], ["y"], name="y"),
        ],
        {"x": (1, 33, 13, 15)},
        ["y"],
        {"w0": first, "w1": second},
    )
    workload = ConvWorkload(
        *(1, 33, 13, 15),
        filters=21,
        kernel=(3, 3),
        strides=(1, 1),
        padding=(1, 1, 1, 0),
        dilation=(1, 1),
        groups=1,
    )
    configs = {workload: ConvConfig("winograd", m=m)}
    compiled = compile_with(model, half, configs, precision="mixed", fallback="none")
    assert "winograd_output" in [kernel.rule for kernel in compiled.report.kernels]
    x = values(1, 33, 13, 15)
    (sums,) = evaluate("Conv", [rounded(x), stored_weights("Conv", first)], pads=[1, 1, 1, 0])
    (wanted,) = evaluate("Conv", [rounded(sums), stored_weights("Conv", second)], pads=[0] * 4)
    error = np.abs(compiled.run({"x": x})["y"] - wanted)
    assert error.max() <= HALF_ULP * np.abs(wanted).max()


@pytest.mark.parametrize("device", ["large_gpu", *in_full("small_gpu", "as it is")])
def test_a_model_of_float16(device: str, half: str, request: pytest.FixtureRequest) -> None:
    """With ``precision`` left alone: it is float16, and adds up in float32 all the same."""
    if device != "as it is":
        request.getfixturevalue(device)
    data, weights = values(1, 130, 9, 7, dtype="float16"), values(40, 130, 3, 3, dtype="float16")
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="c", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"], name="r"),
            helper.make_node("GlobalAveragePool", ["r"], ["mean"], name="mean"),
        ],
        {"x": data.shape},
        ["r", "mean"],
        {"w": weights},
        dtypes=dict.fromkeys(["x", "r", "mean"], TensorProto.FLOAT16),
    )
    compiled = tvm_edge.compile(model, half, fallback="none")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    if (half, device) != ("cuda", "small_gpu"):  # which sums a small image by its outputs
        assert ("tiled" in rules) == (device == "large_gpu" or half == "cuda")
    actual = compiled.run({"x": data})
    (sums,) = evaluate("Conv", [rounded(data), rounded(weights)], pads=[1] * 4)
    images = np.maximum(sums, 0)
    means = rounded(images).mean(axis=(2, 3), keepdims=True)
    for name, wanted in (("r", images), ("mean", means)):
        assert actual[name].dtype == np.float16
        error = np.abs(actual[name] - wanted)
        assert (error <= 1.1 * HALF_ULP * np.abs(wanted) + 1e-5 * np.abs(wanted).max()).all()


def test_exceptions_are_calculated_in_float32(half: str) -> None:
    kind, data, weights, attributes = PRODUCTS["3x3"]
    model = product_model(*PRODUCTS["3x3"])
    compiled = tvm_edge.compile(
        model, half, precision="mixed", precision_exceptions=["product"], fallback="none"
    )
    expected = exact(kind, data.astype("float64"), weights.astype("float64"), attributes)
    actual = compiled.run({"x": data})["y"]
    assert np.abs(actual - expected).max() <= FLOAT32 * np.abs(expected).max()


# ----------------------------------------------------------------------------- without any device


def scheduled(precision: str) -> Scheduled:
    """A convolution of float16, scheduled for a Jetson."""
    model = make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        {"x": (1, 32, 14, 14), "w": (32, 32, 3, 3)},
        ["y"],
        dtypes=dict.fromkeys(["x", "w", "y"], TensorProto.FLOAT16),
    )
    functions = [f for _, f in gpu_functions(model).functions_items()]
    (func,) = (f for f in functions if isinstance(f, tvm.tirx.PrimFunc))
    return schedule(calculate_in_float32(func).with_attr(PRECISION, precision), ORIN)


@pytest.mark.parametrize(("precision", "own"), [("mixed", 2), ("float16", 4)])
def test_cuda_sources(precision: str, own: int) -> None:
    """Local memory is float16, and so is what is on its way there.

    Of the kernels that multiply in float16, weights and the sums of a step as well.
    """
    made = scheduled(precision)
    assert made.rule == "tiled"
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_87"}, host="llvm")
    with target:
        built = tvm.compile(made.func.with_attr("global_symbol", "main"), target=target)
    source = built.mod.imports[0].inspect_source()
    assert "#include <cuda_fp16.h>" in source
    (kernel,) = (part for part in source.split("__global__") if "__shared__" in part)
    arrays = re.findall(r"^  (__shared__ )?alignas\(64\) (\w+) \w+\[", kernel, re.MULTILINE)
    assert [kind for shared, kind in arrays if shared] == ["half", "half"]
    assert arrays.count(("", "half")) == own
    assert ("", "float") in arrays  # whole sums


@pytest.mark.parametrize(
    ("target", "said"), [("jetson-orin-nano", "mixed"), ("adreno-640", "float16")]
)
def test_where_products_are_float16(target: str, said: str) -> None:
    """Not on CUDA, where one at a time is no faster than float32."""
    resolved = resolve_target(target, "llvm")
    functions = gpu_functions(product_model(*PRODUCTS["3x3"]))
    scheduled_ones, _ = schedule_kernels(functions, resolved, "float16")
    kernels = [f for _, f in scheduled_ones.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert kernels and {str(kernel.attrs[PRECISION]) for kernel in kernels} == {said}
