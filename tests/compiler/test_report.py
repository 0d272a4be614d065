"""The report tells the truth about a compilation."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge import CompileReport, zoo


@pytest.fixture(scope="module")
def report(detector: onnx.ModelProto) -> CompileReport:
    return tvm_edge.analyze(detector, "llvm")


def test_every_operator_is_placed_once(report: CompileReport, detector: onnx.ModelProto) -> None:
    nodes = detector.graph.node
    assert [p.operator for p in report.placements] == [n.name for n in nodes]
    assert [p.op_type for p in report.placements] == [n.op_type for n in nodes]
    assert all(p.reason for p in report.placements)


def test_kernels_and_placements_agree(report: CompileReport) -> None:
    computed = {operator for kernel in report.kernels for operator in kernel.operators}
    assert computed == {p.operator for p in report.placements if p.device}
    kinds = {p.op_type for p in report.placements if not p.device}
    assert kinds <= {"Reshape", "Transpose"}, "only views may vanish from this network"
    assert all(kernel.operators for kernel in report.kernels), "a kernel from nowhere"


def test_tails_are_fused_with_their_convolution(report: CompileReport) -> None:
    of = {p.operator: p.op_type for p in report.placements}
    groups = [[of[o] for o in kernel.operators] for kernel in report.kernels]
    assert ["Conv", "BatchNormalization", "Clip"] in groups
    assert ["BatchNormalization"] not in groups and ["Clip"] not in groups


def test_flops_and_bytes_of_a_known_network() -> None:
    """A 1x1 convolution of 16 to 32 channels on 8x8 pixels with bias, and a ReLU."""
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        {"x": (1, 16, 8, 8)},
        ["y"],
        {"w": np.ones((32, 16, 1, 1), "float32"), "b": np.ones(32, "float32")},
    )
    report = tvm_edge.analyze(model, "llvm")
    (kernel,) = report.kernels
    assert kernel.operators == ("conv", "relu")
    macs = 32 * 16 * 64
    assert 2 * macs <= kernel.flops <= 2 * macs + 3 * 32 * 64  # bias and maximum on top
    assert kernel.bytes == 4 * (16 * 64 + 32 * 16 + 32 + 32 * 64)
    assert report.memory.weights == 4 * (32 * 16 + 32)
    assert report.memory.inputs_outputs == 4 * (16 * 64 + 32 * 64)
    assert report.memory.activations == 0


def test_flops_match_the_published_count() -> None:
    report = tvm_edge.analyze("zoo:squeezenet1_0", "llvm")
    assert math.isclose(report.flops, zoo.entry("squeezenet1_0").flops, rel_tol=0.02)


def test_storage_is_shared_between_activations() -> None:
    """A chain of ten equal layers needs two tensors at a time, not ten."""
    depth, tensor = 10, 4 * 8 * 32 * 32
    names = ["x", *(f"t{i}" for i in range(depth - 1)), "y"]
    model = make_model(
        [
            helper.make_node("Conv", [names[i], "w"], [names[i + 1]], name=f"c{i}", pads=[1] * 4)
            for i in range(depth)
        ],
        {"x": (1, 8, 32, 32)},
        ["y"],
        {"w": np.ones((8, 8, 3, 3), "float32")},
    )
    memory = tvm_edge.analyze(model, "llvm").memory
    assert memory.activations == 2 * tensor
    assert memory.weights == 4 * 8 * 8 * 9, "one weight used ten times is stored once"
    parts = memory.activations + memory.workspace + memory.inputs_outputs
    assert memory.mapped == memory.weights, "its pages are in no budget"
    assert memory.peak == parts + memory.programs + memory.floor


def test_round_trip(report: CompileReport) -> None:
    assert CompileReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_summary_names_what_matters(report: CompileReport) -> None:
    text = report.summary()
    for fragment in (
        "ssd_mobilenet_v1",
        "llvm",
        "GFLOP",
        "parameters",
        "operators",
        "partition",
        "MiB peak",
        "weights",
    ):
        assert fragment in text
    assert max(map(len, text.splitlines())) <= 100


def test_analyze_is_what_compile_does(small_model: onnx.ModelProto) -> None:
    analysis = tvm_edge.analyze(small_model, "llvm").to_dict()
    compiled = tvm_edge.compile(small_model, "llvm").report.to_dict()
    assert "build" not in analysis.pop("seconds") and "build" in compiled.pop("seconds")
    assert analysis == compiled


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), ("n", 3, "h", "w")], ids=["fixed", "open"])
def test_operators_of_an_open_image_are_placed(shape: tuple[int | str, ...]) -> None:
    """Its lengths are first named by the inputs, and next in the first view of one."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype("float32")
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    report = tvm_edge.analyze(make_model(nodes, {"image": shape}, ["y"], {"w": weights}), "llvm")
    assert [placement.device for placement in report.placements] == ["llvm", "llvm"]
    assert report.kernels[0].operators == ("conv", "relu")


def test_a_constant_model_places_nothing() -> None:
    """Everything folds: the report says so and the model still runs."""
    model = make_model(
        [
            helper.make_node("Identity", ["x"], ["y"], name="same"),
            helper.make_node("Add", ["a", "a"], ["z"], name="add"),
        ],
        {"x": (2,)},
        ["y", "z"],
        {"a": np.asarray([1.5], "float32")},
    )
    compiled = tvm_edge.compile(model, "llvm")
    (folded,) = [p for p in compiled.report.placements if p.operator == "add"]
    assert folded.device == "" and "constant" in folded.reason
    outputs = compiled.run({"x": np.asarray([1, 2], "float32")})
    np.testing.assert_array_equal(outputs["y"], [1, 2])
    np.testing.assert_array_equal(outputs["z"], [3.0])


def _three_reductions() -> onnx.ModelProto:
    """Softmaxes in a row, which are kernels of their own."""
    return make_model(
        [
            helper.make_node("Softmax", ["x"], ["a"], name="first"),
            helper.make_node("Softmax", ["a"], ["b"], name="second"),
            helper.make_node("Softmax", ["b"], ["y"], name="third"),
        ],
        {"x": (16, 256)},
        ["y"],
    )


@pytest.mark.parametrize(
    ("target", "fallback", "line"),
    [
        ("llvm", "auto", "llvm 3/3 operators, 1 partition, 0 copies"),
        ("mali-g76", "auto", "opencl 3/3 operators, 1 partition, 0 copies"),
        (
            "jetson-orin-nano",
            ["second"],
            "cuda 2/3 operators, 3 partitions, 2 copies, 32 KiB; CPU: Softmax ×1",
        ),
        (
            "mali-g76",
            ["second"],
            "opencl 2/3 operators, 3 partitions, 1 copy, 16 KiB, 1 tensor in shared memory; "
            "CPU: Softmax ×1",
        ),
        (
            "mali-g76",
            ["Softmax"],
            "llvm 3/3 operators, 1 partition, 0 copies; nothing runs on opencl, all on the CPU",
        ),
    ],
)
def test_the_line_that_compile_prints(target: str, fallback: str | list[str], line: str) -> None:
    report = tvm_edge.analyze(_three_reductions(), target, fallback=fallback)
    assert report.placement_line() == line
    assert line in " ".join(report.summary().split())  # a page is 100 columns wide


def test_the_line_says_that_everything_left_the_device_by_cost(gpu: str) -> None:
    report = tvm_edge.analyze("zoo:shapes_ssd", gpu, tuning_logs=False)
    left = all(p.device == "llvm" for p in report.placements if p.device)
    said = "nothing runs on" in report.placement_line()
    assert said == left
    if left:
        assert "faster by cost (fallback='list' keeps them there)" in report.placement_line()


def test_compile_says_that_nothing_runs_on_the_target(caplog: pytest.LogCaptureFixture) -> None:
    tvm_edge.compile(_three_reductions(), "opencl", fallback=["Softmax"])
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert said.getMessage().endswith(": nothing runs on opencl, all on the CPU")
    caplog.clear()
    tvm_edge.compile(_three_reductions(), "opencl", fallback=["second"])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_bytes_that_depend_on_data_are_not_called_none(detector: onnx.ModelProto) -> None:
    report = tvm_edge.analyze(detector, "jetson-orin-nano", fallback=["NonMaxSuppression"])
    assert [bool(copy["bytes"]) for copy in report.copies] == [True, True, False]
    assert "KiB and what depends on data; CPU: NonMaxSuppression ×1" in report.placement_line()
