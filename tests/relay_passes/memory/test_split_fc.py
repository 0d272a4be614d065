"""Dense layers in parts compute what they compute in one piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tvm import relax

from tests.marks import in_full
from tests.onnx_models import make_model, reference, relative_error
from tvm_edge import CompileReport, InputError
from tvm_edge.compiler.driver import compile_with
from tvm_edge.relay_passes.memory.split_fc import least_window, plan_cut, split_dense
from tvm_edge.relay_passes.memory.stream_weights import StreamWeights, asks_for_part
from tvm_edge.runtime.entry import NEXT_PART, UPLOAD_PART

KIB = 1 << 10


def layers(rows: Sequence[int], *sizes: int, tail: str = "Relu") -> onnx.ModelProto:
    """Dense layers ``fc0``, ``fc1``, … of these sizes, each with a bias and what follows it."""
    random = np.random.default_rng(sum(sizes))
    nodes, weights, value = [], {}, "x"
    for i, (terms, columns) in enumerate(pairwise(sizes)):
        weights[f"w{i}"] = random.standard_normal((terms, columns), np.float32)
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"fc{i}"], name=f"fc{i}"))
        value = f"fc{i}"
        weights[f"b{i}"] = random.standard_normal(columns, np.float32)
        nodes.append(helper.make_node("Add", [value, f"b{i}"], [f"a{i}"], name=f"a{i}"))
        value = f"a{i}"
        if tail and i < len(sizes) - 2:
            nodes.append(helper.make_node(tail, [value], [f"t{i}"], name=f"t{i}"))
            value = f"t{i}"
    return make_model(nodes, {"x": (*rows, sizes[0])}, [value], weights)


def check(model: onnx.ModelProto, compiled: Any) -> None:
    """Compare with ONNX Runtime, on other values in each run."""
    random = np.random.default_rng(7)
    for _ in range(2):
        values = {
            spec.name: random.standard_normal(spec.typical_shape).astype("float32")
            for spec in compiled.inputs
        }
        found = compiled.run(values)
        for name, expected in reference(model, values).items():
            assert relative_error(found[name], expected) < 1e-4


@given(
    shape=st.tuples(st.integers(1, 60_000), st.integers(1, 60_000)),
    itemsize=st.sampled_from([2, 4]),
    window=st.integers(64 * KIB, 1 << 30),
)
def test_two_parts_fit_the_window(shape: tuple[int, int], itemsize: int, window: int) -> None:
    assume(prod(shape) * itemsize > window)
    cut = plan_cut(shape, itemsize, window)
    assert (cut is None) == (window < least_window(shape, itemsize))
    if cut is not None:
        places = cut.places(shape)
        across = shape[cut.along == "reduction"]
        assert [begin for begin, _ in places[1:]] == [end for _, end in places[:-1]]
        assert places[0][0] == 0 and places[-1][1] == shape[cut.along == "output"]
        assert 2 * itemsize * across * max(end - begin for begin, end in places) <= window
        assert len({end - begin for begin, end in places[:-1]}) == 1
        assert 3 <= len(places) <= 64


CASES = [
    # rows, sizes, window, what layers are cut along, and into how many parts
    ((1,), (300, 700, 490), 260 * KIB, [("output", 11), ("reduction", 11)]),
    *in_full(
        ((7,), (130, 400, 390), 96 * KIB, [("output", 7), ("reduction", 25)]),
        ((1,), (200, 1000, 50), 256 * KIB, [("output", 8)]),
        ((1,), (3000, 70, 33), 128 * KIB, [("reduction", 16)]),
        ((3,), (257, 801), 300 * KIB, [("output", 7)]),
        ((2, 5), (130, 400), 96 * KIB, [("output", 7)]),
        ((33,), (511, 322), 300 * KIB, [("reduction", 8)]),
        ((4,), (999, 129), 130 * KIB, [("reduction", 8)]),
    ),
]


@pytest.mark.parametrize("target", ["llvm", "opencl"])
@pytest.mark.parametrize(("rows", "sizes", "window", "cuts"), CASES)
def test_values(
    rows: tuple[int, ...],
    sizes: tuple[int, ...],
    window: int,
    cuts: list[tuple[str, int]],
    target: str,
) -> None:
    model = layers(rows, *sizes)
    compiled = compile_with(model, target, {}, fallback="none", weight_window=window)
    splits = compiled.report.splits
    assert [(split.along, split.parts) for split in splits] == cuts
    assert [split.operator for split in splits] == [f"fc{i}" for i in range(len(cuts))]
    assert {split.device for split in splits} == {target}
    assert all(split.window <= window for split in splits)
    check(model, compiled)


def test_parts_are_packed_in_panels() -> None:
    """Each by itself, where some rows read them."""
    model = layers((7,), 130, 400)
    compiled = compile_with(model, "llvm", {}, weight_window=96 * KIB)
    (split,) = compiled.report.splits
    products = [k.name for k in compiled.report.kernels if "dense_panels" in k.name]
    assert len(products) == split.parts == 7 and len(set(products)) == 2  # the last is shorter
    check(model, compiled)


def test_equal_parts_are_one_kernel_and_no_part_leaves_its_operator() -> None:
    compiled = compile_with(layers((1,), 256, 1024), "llvm", {}, weight_window=256 * KIB)
    (split,) = compiled.report.splits
    products = [k for k in compiled.report.kernels if k.operators == ("fc0",)]
    assert split.parts == 8
    assert len(products) == 8 and len({kernel.name for kernel in products}) == 1
    assert sum(k.flops for k in compiled.report.kernels) == pytest.approx(2 * 256 * 1024, rel=0.01)


def test_a_layer_that_fits_the_window_stays() -> None:
    model = layers((1,), 256, 128)
    compiled = compile_with(model, "llvm", {}, weight_window=256 * 128 * 4)
    assert compiled.report.splits == ()
    assert not any(number < 0 for number in compiled._info.devices.weights)
    check(model, compiled)


def test_report(tmp_path: Any) -> None:
    model = layers((1,), 256, 1024, 300)
    compiled = compile_with(model, "llvm", {}, weight_window=256 * KIB)
    report = compiled.report
    assert [split.weight_bytes for split in report.splits] == [1 << 20, 1024 * 300 * 4]
    assert report.memory is not None
    assert report.memory.weights_by_device["llvm"] == 4 * (1024 + 300)  # the biases
    assert report.memory.weights - report.memory.mapped == 0  # parts are pages of the artifact
    assert "fc0 on llvm: 1.0 MiB in 8 parts along its output, 0.2 MiB at a time" in report.summary()
    assert CompileReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_layers_of_one_weight_share_its_parts() -> None:
    weight = np.random.default_rng(0).standard_normal((384, 384), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="first"),
        helper.make_node("Tanh", ["y"], ["z"]),
        helper.make_node("MatMul", ["z", "w"], ["r"], name="second"),
    ]
    model = make_model(nodes, {"x": (1, 384)}, ["r"], {"w": weight})
    compiled = compile_with(model, "llvm", {}, weight_window=256 * KIB)
    assert [split.parts for split in compiled.report.splits] == [6, 6]
    assert len(compiled._weights) == 6
    check(model, compiled)


def test_sums_of_halves_are_rounded_once() -> None:
    random = np.random.default_rng(0)
    x, weight = (
        random.standard_normal(shape).astype("float16") for shape in ((1, 2000), (2000, 40))
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    half = TensorProto.FLOAT16
    model = make_model(
        [node], {"x": (1, 2000)}, ["y"], {"w": weight}, dtypes={"x": half, "y": half}
    )
    compiled = compile_with(model, "llvm", {}, weight_window=64 * KIB)
    (split,) = compiled.report.splits
    assert (split.along, split.parts, split.weight_bytes) == ("reduction", 6, 160_000)
    expected = (x.astype("float64") @ weight.astype("float64")).astype("float16")
    found = compiled.run({"x": x})["y"]
    assert found.dtype == np.float16
    assert relative_error(found.astype("float64"), expected.astype("float64")) < 1e-3
    assert np.mean(found == expected) > 0.9


def test_some_layers_leave_the_gpu() -> None:
    """Each is streamed to where it runs."""
    model = layers((1,), 256, 512, 513, tail="Tanh")
    compiled = compile_with(model, "opencl", {}, fallback=["fc0"], weight_window=200 * KIB)
    assert {s.operator: s.device for s in compiled.report.splits} == {
        "fc0": "llvm",
        "fc1": "opencl",
    }
    check(model, compiled)


@pytest.mark.parametrize("target", ["opencl", *in_full("llvm")])
def test_parts_stay_in_order_when_independent_kernels_share_launches(target: str) -> None:
    model = layers((1,), 256, 512)
    compiled = compile_with(
        model, target, {}, fallback="none", parallel_fusion=True, weight_window=128 * KIB
    )
    assert compiled.report.splits[0].parts == 8
    assert sum("fc0" in k.operators for k in compiled.report.kernels) >= 8
    check(model, compiled)


def test_branches_keep_their_layers() -> None:
    """Which of them runs is not known."""
    weight = np.random.default_rng(0).standard_normal((200, 200), np.float32)

    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x", "w"], [name])
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, (200, 200))
        return helper.make_graph([node], name, [], [result])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="outside"),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If",
            ["positive"],
            ["r"],
            then_branch=branch("p", "MatMul"),
            else_branch=branch("n", "Add"),
        ),
    ]
    weights = {"w": weight, "zero": np.zeros((), np.float32)}
    model = make_model(nodes, {"x": (200, 200)}, ["r"], weights)
    compiled = compile_with(model, "llvm", {}, weight_window=80 * KIB)
    assert [split.operator for split in compiled.report.splits] == ["outside"]
    for sign in (1, -1):
        x = sign * np.abs(np.random.default_rng(1).standard_normal((200, 200), np.float32))
        x = (x * np.sign(weight.sum(axis=1))).astype("float32")
        expected = reference(model, {"x": x})["r"]
        assert relative_error(compiled.run({"x": x})["r"], expected) < 1e-4


@pytest.mark.parametrize("window", [0, -1, 65535, 1.5, "1MiB", True])
def test_windows_that_are_none(window: Any) -> None:
    with pytest.raises(InputError, match="weight_window"):
        compile_with(layers((1,), 8, 8), "llvm", {}, weight_window=window)


def test_a_window_that_is_too_small_for_a_layer() -> None:
    with pytest.raises(InputError, match=r"'fc0'.*use at least 655360") as caught:
        compile_with(layers((1,), 5000, 1024), "llvm", {}, weight_window=64 * KIB)
    assert caught.value.expected == "at least 655360"
    assert plan_cut((5000, 1024), 4, 655360) is not None


def module_of(*steps: str) -> tvm.IRModule:
    """``main`` of layers from 128 to 128, by kernel; ``m`` is cut in three, ``r`` is a ReLU."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 128), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for number, step in enumerate(steps):
                weight = relax.const(np.full((128, 128), number, np.float32))
                call = relax.op.matmul(value, weight) if step == "m" else relax.op.nn.relu(value)
                value = builder.emit(call)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    split = split_dense(builder.get(), 48 * KIB, {})
    assert [layer.parts for layer in split.layers] == [3] * steps.count("m")
    return relax.transform.LegalizeOps()(split.module)


@pytest.mark.parametrize(("kind", "name"), [("llvm", NEXT_PART), ("opencl", UPLOAD_PART)])
def test_each_part_is_asked_for_in_front_of_its_kernel(kind: str, name: str) -> None:
    """With the one behind it and the one before it, in a circle."""
    main = StreamWeights(kind)(module_of("m", "r", "m"))["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    asked = [i for i, binding in enumerate(bindings) if asks_for_part(binding.value)]
    assert len(asked) == 6
    calls = [bindings[i].value for i in asked]
    assert {str(call.args[0].global_symbol) for call in calls} == {name}
    parts = [call.args[1] for call in calls]
    for i, call in enumerate(calls):
        assert call.args[2].same_as(parts[(i + 1) % 6]) and call.args[3].same_as(parts[i - 1])
        kernel = bindings[asked[i] + 1]
        assert kernel.value.args[1].fields[1].same_as(bindings[asked[i]].var)
        if i:
            assert call.args[4].same_as(bindings[asked[i - 1] + 1].var)


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_several_models_run_alone_and_together(target: str) -> None:
    """The first part of one model comes after a kernel of the other, where that runs."""
    models = {"a": layers((1,), 256, 512), "b": layers((1,), 384, 512, 64)}
    compiled = compile_with(models, target, {}, fallback="none", weight_window=128 * KIB)
    assert {split.operator for split in compiled.report.splits} == {"a/fc0", "b/fc0"}
    random = np.random.default_rng(3)
    values = {
        spec.name: random.standard_normal(spec.typical_shape).astype("float32")
        for spec in compiled.inputs
    }
    for chosen in (None, ["b"], ["a"], None):
        found = compiled.run(values, models=chosen)
        for model in chosen or models:
            own = {"x": values[f"{model}/x"]}
            for name, expected in reference(models[model], own).items():
                assert relative_error(found[f"{model}/{name}"], expected) < 1e-4


def test_frames_of_a_stream_take_parts_on_each_device() -> None:
    model = layers((1,), 256, 512, 300)
    where = compile_with(model, "opencl", {}, fallback=["fc1", "a1"], weight_window=128 * KIB)
    assert {split.device for split in where.report.splits} == {"opencl", "llvm"}
    random = np.random.default_rng(5)
    frames = [{"x": random.standard_normal((1, 256), np.float32)} for _ in range(5)]
    with where.stream(frames, depth=3) as stream:
        assert len(set(stream.stages)) == 2
        for frame, found in zip(frames, stream, strict=True):
            for name, expected in reference(model, frame).items():
                assert relative_error(found[name], expected) < 1e-4
