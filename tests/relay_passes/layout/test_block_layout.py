"""Blocked layouts in a graph: where images are packed and unpacked, and where they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tests.compiler import steps
from tests.onnx_models import make_model, random_input
from tests.schedules.blocked_harness import SPECS, Conv, check, compile_as, direct
from tests.schedules.harness import Graph
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

SPEC = SPECS[0]
ONE = {"kernel": (1, 1), "pads": (0, 0, 0, 0)}


def simplified(model: onnx.ModelProto) -> tvm.IRModule:
    return steps.simplified(load_model(model).module)


def operators(mod: tvm.IRModule) -> Counter[str]:
    """Count main's calls of operators and kernels, without the digits that make a name unique."""
    found: Counter[str] = Counter()
    for block in mod["main"].body.blocks:
        for value in (binding.value for binding in block.bindings):
            if not isinstance(value, relax.Call):
                continue
            name = value.op.name.removeprefix("relax.")
            if name == "call_tir":
                name = value.args[0].name_hint.rstrip("0123456789")
            found[name] += 1
    return found


def laid_out(
    model: onnx.ModelProto,
    spec: DeviceSpec = SPEC,
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
) -> Counter[str]:
    mod = relax.transform.DeadCodeElimination()(BlockLayout(spec, configs)(simplified(model)))
    return operators(mod)


# --------------------------------------------------------------------- between convolutions


def between(graph: Graph, kind: str, data: str) -> str:
    """Something that stands between two convolutions of 32 channels."""
    if kind == "relu":
        return graph.op("Relu", data)
    if kind == "silu":
        return graph.op("Mul", data, graph.op("Sigmoid", data))
    if kind == "gelu":  # as exporters before opset 20 write it
        error = graph.op("Erf", graph.op("Div", data, graph.constant(np.float32(2**0.5))))
        whole = graph.op("Mul", data, graph.op("Add", error, graph.constant(np.float32(1))))
        return graph.op("Mul", whole, graph.constant(np.float32(0.5)))
    if kind == "add":
        return graph.op(
            "Add", Conv(channels=32, filters=32, **ONE).build(graph, "side", data), data
        )
    if kind == "prelu":
        return graph.op("PRelu", data, graph.constant(random_input((32, 1, 1))))
    if kind == "prelu of one slope":
        return graph.op("PRelu", data, graph.constant(np.full((1, 1, 1), 0.1)))
    if kind == "extremum":
        return graph.op("Min", graph.op("Max", data, graph.constant(-0.4)), graph.constant([0.4]))
    if kind == "choice":
        above = graph.op("Greater", data, graph.constant(random_input((32, 1, 1))))
        return graph.op("Where", above, data, graph.constant(0.25))
    if kind == "max":
        return graph.op("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    if kind == "average":
        return graph.op("AveragePool", data, kernel_shape=[2, 3], pads=[1, 1, 0, 1])
    if kind == "mean":
        return graph.op("GlobalAveragePool", data)
    if kind == "concat":
        side = Conv(channels=32, filters=48, **ONE).build(graph, "side", data)
        return graph.op("Concat", side, data, axis=1)
    if kind == "squeeze and excitation":
        gate = Conv(channels=32, filters=32, epilogue="sigmoid", image=(1, 1), **ONE)
        return graph.op("Mul", data, gate.build(graph, "gate", graph.op("GlobalAveragePool", data)))
    if kind == "hard swish":  # as PP-OCR's exporter writes it
        bounds = graph.constant(np.float32(0)), graph.constant(np.float32(6))
        gate = graph.op("Clip", graph.op("Add", data, graph.constant(3.0)), *bounds)
        return graph.op("Div", graph.op("Mul", data, gate), graph.constant(6.0))
    assert kind == "resize"
    scales = graph.constant(np.array([1, 1, 2, 2], "float32"))
    return graph.op("Resize", data, "", scales, mode="nearest")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    "kind",
    [
        "relu",
        "silu",
        "gelu",
        "add",
        "prelu",
        "prelu of one slope",
        "extremum",
        "choice",
        "hard swish",
        "max",
        "average",
        "mean",
        "concat",
        "squeeze and excitation",
        "resize",
    ],
)
def test_images_stay_in_blocks_between_convolutions(kind: str) -> None:
    graph = Graph()
    data = Conv(channels=24, filters=32, image=(11, 9), epilogue="bias").build(graph, "first")
    data = between(graph, kind, data)
    channels = 80 if kind == "concat" else 32
    graph.output(Conv(channels=channels, filters=24, **ONE).build(graph, "last", data))
    compiled = check(graph, SPEC, direct)
    assert compiled.transforms() == ["pack", "unpack"]
    for name in ("first", "last"):
        assert compiled.rules_of(name) == {"conv2d_blocked"}


def test_a_mean_of_many_pixels_is_one_of_lines() -> None:
    """One sum of all of them loses 4e-4 of itself, where each addition rounds the same way."""
    graph = Graph()
    data = graph.given(np.full((1, 16, 184, 184), -0.80420905, "float32"))
    one = graph.constant(np.eye(16).reshape(16, 16, 1, 1))
    graph.output(graph.op("GlobalAveragePool", graph.op("Conv", data, one, name="conv")))
    compiled = compile_as(graph.model(), SPEC, direct)
    assert compiled.rules_of("conv") == {"conv2d_blocked"}
    (mean,) = compiled.model.run(graph.values).values()
    np.testing.assert_allclose(mean, graph.values[data][:, :, :1, :1], rtol=1e-6)


def test_an_image_is_packed_once_for_all_that_read_it() -> None:
    graph = Graph()
    data = graph.input(1, 32, 9, 9)
    for name in ("a", "b", "c"):
        graph.output(Conv(channels=32, filters=32).build(graph, name, data))
    assert Counter(check(graph, SPEC, direct).transforms()) == {"pack": 1, "unpack": 3}


def test_an_image_is_unpacked_once_for_all_that_read_it() -> None:
    graph = Graph()
    data = Conv(channels=32, filters=40, epilogue="bias").build(graph)
    graph.output(graph.op("Softmax", data, axis=1))
    graph.output(graph.op("Transpose", data, perm=[0, 3, 1, 2]))
    graph.output(graph.op("ReduceMax", data, axes=[1]))
    assert check(graph, SPEC, direct).transforms() == ["pack", "unpack"]


def test_an_output_of_the_model_may_be_read_by_convolutions() -> None:
    """It is unpacked for the user, and the blocks go on."""
    graph = Graph()
    first = Conv(channels=32, filters=40).build(graph, "first")
    graph.output(first)
    graph.output(Conv(channels=40, filters=32).build(graph, "second", first))
    compiled = check(graph, SPEC, direct)
    assert Counter(compiled.transforms()) == {"pack": 1, "unpack": 2}


def test_three_channels_are_read_as_they_are() -> None:
    """Packing the user's picture would mostly add zeros."""
    graph = Graph()
    graph.output(Conv(channels=3, filters=32, image=(20, 20), strides=(2, 2)).build(graph))
    assert check(graph, SPEC, direct).transforms() == ["unpack"]


def test_constants_that_broadcast_are_packed() -> None:
    graph = Graph()
    data = Conv(channels=32, filters=24, image=(6, 5), epilogue="none", batch=2).build(
        graph, "first"
    )
    random = np.random.default_rng(0)
    for shape in ((), (1,), (5,), (6, 1), (24, 1, 1), (1, 24, 6, 5), (2, 1, 6, 5), (2, 24, 1, 1)):
        data = graph.op("Mul", data, graph.constant(random.normal(size=shape)))
        data = graph.op("Sub", graph.constant(random.normal(size=shape)), data)
    graph.output(Conv(channels=24, filters=24, **ONE).build(graph, "last", data))
    assert check(graph, SPEC, direct).transforms() == ["pack", "unpack"]


@pytest.mark.parametrize("shape", [(1, 1, 9, 9), (9, 9), (1, 1, 1, 1), (9, 1)])
def test_an_image_of_one_channel_broadcasts(shape: tuple[int, ...]) -> None:
    graph = Graph()
    data = Conv(channels=32, filters=32).build(graph, "first")
    graph.output(graph.op("Mul", data, graph.input(*shape)))
    check(graph, SPEC, direct)


# --------------------------------------------------------------------------- whether it pays


def chain(length: int, **sizes: object) -> onnx.ModelProto:
    graph = Graph()
    conv = Conv(**{"channels": 16, "filters": 16, "image": (8, 8), **sizes})  # type: ignore[arg-type]
    data = graph.input(conv.batch, conv.channels, *conv.image)
    for i in range(length):
        data = conv.build(graph, f"conv{i}", data)
    graph.output(data)
    return graph.model()


def test_blocks_have_to_pay_for_packing() -> None:
    """Two copies of an image cost more than a small convolution gains, not more than forty do."""
    assert laid_out(chain(1))["nn.conv2d"] == 1
    long = laid_out(chain(40))
    assert (long["conv2d_blocked"] + long["winograd_conv2d"], long["nn.conv2d"]) == (40, 0)
    assert long["pack"] == long["unpack"] == 1


def test_a_large_convolution_pays_by_itself() -> None:
    large = laid_out(chain(1, channels=128, filters=128, image=(56, 56), strides=(2, 2)))
    assert large["conv2d_blocked"] == 1


def workloads(model: onnx.ModelProto) -> list[ConvWorkload]:
    bindings = [b for block in simplified(model)["main"].body.blocks for b in block.bindings]
    return [found[0] for b in bindings if (found := conv_workload(b.value)) is not None]


def test_a_measured_choice_is_taken() -> None:
    """A measured layout is taken for one convolution alone, and for one that is better in NCHW."""
    graph = Graph()
    first = Conv(channels=32, filters=32).build(graph, "first")
    graph.output(Conv(channels=32, filters=64).build(graph, "second", first))
    model = graph.model()
    one, two = workloads(model)
    block = SPEC.lanes()
    blocked = ConvConfig("direct", block=block)
    found = laid_out(model, SPEC, {one: blocked, two: blocked})
    assert found["conv2d_blocked"] == 2 and not found["nn.conv2d"]
    found = laid_out(model, SPEC, {one: blocked, two: ConvConfig("plain")})
    assert found["conv2d_blocked"] == found["nn.conv2d"] == 1
    found = laid_out(model, SPEC, {one: ConvConfig("winograd", block=block, m=2), two: blocked})
    assert found["winograd_conv2d"] == found["conv2d_blocked"] == 1


# ------------------------------------------------------------------------------ left alone


def conv_model(dtype: int = TensorProto.FLOAT, **changes: object) -> onnx.ModelProto:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    shape = changes.get("shape", (1, 64, 56, 56))
    weights = random_input((64, 64, 3, 3)).astype(kind)
    inputs: dict[str, tuple[object, ...]] = {"x": shape}  # type: ignore[dict-item]
    constant = not changes.get("weights_are_inputs")
    if not constant:
        inputs["w"] = weights.shape
    return make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)],
        inputs,
        ["y"],
        {"w": weights} if constant else {},
        dtypes=dict.fromkeys(("x", "w", "y"), dtype),
    )


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16], ids=str)
def test_the_model_of_the_next_tests_is_blocked(dtype: int) -> None:
    assert laid_out(conv_model(dtype))["winograd_conv2d"] == 1


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(conv_model(TensorProto.DOUBLE), id="float64"),
        pytest.param(conv_model(weights_are_inputs=True), id="filters-are-inputs"),
    ],
)
def test_other_convolutions_stay_as_they_are(model: onnx.ModelProto) -> None:
    before = simplified(model)
    assert_equal(BlockLayout(SPEC)(before), before)


def assert_equal(actual: tvm.IRModule, expected: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(actual, expected)


def test_open_channels_stay_as_they_are() -> None:
    builder = relax.BlockBuilder()
    batch, channels = (tvm.tirx.Var(name, "int64") for name in ("n", "c"))
    x = relax.Var("x", relax.TensorType((batch, channels, 56, 56), "float32"))
    weights = relax.Var("w", relax.TensorType((64, channels, 3, 3), "float32"))
    with builder.function("main", [x, weights]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.conv2d(x, weights, padding=1))
        builder.emit_func_output(result)
    before = builder.get()
    assert_equal(BlockLayout(SPEC)(before), before)


def test_a_cpu_without_vectors_and_a_gpu_stay_as_they_are() -> None:
    before = simplified(conv_model())
    assert_equal(BlockLayout(replace(SPEC, simd_bytes=4))(before), before)
    gpu = resolve_target("mali-t860")
    assert_equal(steps.between(before, "BlockLayout", "LowerOperators", gpu), before)


# ------------------------------------------------------------------------------- the report


@pytest.fixture(scope="module")
def mixed() -> onnx.ModelProto:
    """Blocks, a plain reader of them, an output in the middle and one at the end."""
    graph = Graph()
    data = Conv(channels=32, filters=40).build(graph, "first")
    graph.output(data)
    soft = graph.op("Softmax", data, name="softmax", axis=1)
    graph.output(Conv(channels=40, filters=32, epilogue="silu").build(graph, "second", soft))
    return graph.model()


def test_every_operator_is_placed_once(mixed: onnx.ModelProto) -> None:
    report = compile_as(mixed, SPEC, direct).report
    names = [placement.operator for placement in report.placements]
    assert len(names) == len(set(names)) == len(mixed.graph.node)
    assert all(placement.device for placement in report.placements)


def test_every_kernel_is_of_an_operator(mixed: onnx.ModelProto) -> None:
    kernels = compile_as(mixed, SPEC, direct).report.kernels
    assert all(kernel.operators for kernel in kernels), kernels


def test_work_is_counted_by_definition(mixed: onnx.ModelProto) -> None:
    """Filled channels and transforms of a layout are no work of the model's."""
    blocked = compile_as(mixed, SPEC, direct).report
    plain = compile_as(mixed, SPEC, lambda *_: ConvConfig("plain")).report
    assert not [k for k in plain.kernels if k.rule == "conv2d_blocked"]
    assert sum(k.flops for k in blocked.kernels) == pytest.approx(
        sum(k.flops for k in plain.kernels)
    )
    assert blocked.flops == plain.flops


def test_a_profile_names_operators(mixed: onnx.ModelProto) -> None:
    model = compile_as(mixed, SPEC, direct).model
    inputs = {s.name: random_input(s.typical_shape) for s in model.inputs}
    rows = model.profile(inputs).kernels
    assert {"first", "second", "softmax"} <= {name for row in rows for name in row.operators}
