"""Zoo networks on a GPU agree with ONNX Runtime, and the report says what ran where."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.compiler.reduced_networks import (
    REDUCED,
    TOLERANCE,
    networks,
    score_threshold,
    with_intermediates,
)
from tests.detections import compare_detections
from tests.marks import in_full
from tests.onnx_models import conv_relu, make_model, reference, relative_error
from tests.zoo.networks import HUGE
from tvm_edge import zoo

Options = dict[str, object]

# Reduced, the rest of the zoo adds nothing to the rules but minutes of building kernels; residuals
# are in mobilenet_v2, which is compiled for other GPUs, and joined branches in tests/relay_passes.
QUICK = ("ssd_mobilenet_v1",)
# Of one shape on a GPU, and there they are given as many updates as suppression keeps boxes.
ON_CPU = {"faster_rcnn_head": {"ScatterND"}}
DETECTORS = tuple(name for name in zoo.names() if zoo.entry(name).task == "detection")


@cache
def detector(gpu: str) -> tuple[onnx.ModelProto, tvm_edge.CompiledModel]:
    """The reduced SSD, and what is made of it for a GPU."""
    model = zoo.build("ssd_mobilenet_v1", **REDUCED["ssd_mobilenet_v1"])
    return model, tvm_edge.compile(model, gpu, fallback="list", tuning_logs=False)


def assert_close(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Every dense float32 output is within the tolerance."""
    for tensor, value in expected.items():
        if value.dtype == np.float32 and not tensor.startswith("detection"):
            assert actual[tensor].shape == value.shape
            assert relative_error(actual[tensor], value) <= TOLERANCE, tensor


@pytest.mark.parametrize(("name", "options"), networks(quick=QUICK, huge=HUGE))
def test_as_compiled_for_use(name: str, options: Options, gpu: str) -> None:
    """Right; every kernel has a schedule; all on the GPU, detections too, but what is listed."""
    if (name, options) == ("ssd_mobilenet_v1", REDUCED["ssd_mobilenet_v1"]):
        model, compiled = detector(gpu)
    else:
        model = zoo.build(name, **options)
        # By the rules, whatever records ship for the device.
        compiled = tvm_edge.compile(model, gpu, fallback="list", tuning_logs=False)
    inputs = zoo.sample_input(model, seed=1)
    actual, expected = compiled.run(inputs), reference(model, inputs)
    assert_close(actual, expected)
    report = compiled.report
    assert {kernel.origin for kernel in report.kernels if kernel.device == gpu} == {"heuristic"}
    convolutions = [p for p in report.placements if p.op_type in ("Conv", "Gemm")]
    assert convolutions and all(p.device == gpu for p in convolutions)
    if name in DETECTORS:
        threshold = score_threshold(model)
        result = compare_detections(actual, expected, score_threshold=threshold)
        assert result.unmatched == 0
        assert result.matched >= 10
    left = {p.op_type for p in report.placements if p.device not in (gpu, "")}
    assert left == ON_CPU.get(name, set())
    assert left or (len(report.partitions), report.copies) == (1, ())


@pytest.mark.parametrize("size", ["small_gpu", "large_gpu"])
@pytest.mark.parametrize("name", ["mobilenet_v2", *in_full("faster_rcnn_head")])
def test_as_compiled_for_other_gpus(
    name: str, size: str, gpu: str, request: pytest.FixtureRequest
) -> None:
    """Schedules chosen for real GPUs, and for many cores, give the reference's outputs."""
    request.getfixturevalue(size)
    model = zoo.build(name, **REDUCED[name])
    inputs = zoo.sample_input(model, seed=2)
    assert_close(
        tvm_edge.compile(model, gpu, fallback="list").run(inputs), reference(model, inputs)
    )


@pytest.mark.parametrize(("name", "options"), networks(quick=()))
def test_intermediates(name: str, options: Options, gpu: str) -> None:
    """Tensors inside agree too."""
    model, inside = with_intermediates(zoo.build(name, **options), 8)
    assert len(set(inside)) == 8
    inputs = zoo.sample_input(model)
    assert_close(
        tvm_edge.compile(model, gpu, fallback="list").run(inputs), reference(model, inputs)
    )


def test_classifier_without_fallback(gpu: str) -> None:
    """``fallback="error"`` accepts what needs none."""
    report = tvm_edge.compile(conv_relu(), gpu, fallback="error").report
    assert {p.device for p in report.placements if p.device} == {gpu} and report.copies == ()


@pytest.mark.full  # faster_rcnn_head, below, is cut at more places
def test_where_a_detector_is_cut(gpu: str) -> None:
    """The suppression alone on the CPU; what it found goes back, however much that is."""
    model = zoo.build("ssd_mobilenet_v1", **REDUCED["ssd_mobilenet_v1"])
    assert_cut_at_the_suppression(tvm_edge.analyze(model, gpu, fallback=["NonMaxSuppression"]), gpu)


def assert_cut_at_the_suppression(report: tvm_edge.CompileReport, gpu: str) -> None:
    """Assert that SSD's boxes and scores are copied to the CPU, and its detections back."""
    on_cpu = {p.operator: p.reason for p in report.placements if p.device == "llvm"}
    assert on_cpu == {"postprocess/nms": "named in fallback="}
    assert [device for device, _ in report.partitions] == [gpu, "llvm", gpu]
    there = [c for c in report.copies if c["destination"] == "llvm"]
    assert [c["tensor"] for c in there] == ["postprocess/decode/boxes", "postprocess/scores/scores"]
    assert all(c["bytes"] > 0 for c in there)
    assert [c["tensor"] for c in report.copies if c["destination"] == gpu] == ["postprocess/nms"]


@pytest.mark.full  # a smaller one runs in test_two_suppressions_on_the_cpu, and in an example
def test_a_detector_that_is_cut_finds_the_same(gpu: str) -> None:
    model, uncut = detector(gpu)
    compiled = tvm_edge.compile(model, gpu, fallback=["NonMaxSuppression"])
    assert_cut_at_the_suppression(compiled.report, gpu)
    inputs = zoo.sample_input(model)
    actual, whole = compiled.run(inputs), uncut.run(inputs)
    suppression = onnx.utils.Extractor(model).extract_model(["boxes", "scores"], ["selected"])
    tail = reference(suppression, {"boxes": actual["boxes"], "scores": actual["scores"]})
    np.testing.assert_array_equal(actual["selected"], tail["selected"])
    for name, value in whole.items():
        np.testing.assert_array_equal(actual[name], value)


def check_cut(model: onnx.ModelProto, report: tvm_edge.CompileReport, gpu: str) -> None:
    """The suppressions are on the CPU, and all else on the GPU."""
    of = {node.name for node in model.graph.node if node.op_type == "NonMaxSuppression"}
    moved = {p.operator for p in report.placements if p.reason == "named in fallback="}
    on_cpu = {p.operator for p in report.placements if p.device == "llvm"}
    # Faster R-CNN's ranks of boxes are as many as the first suppression left.
    assert moved == of and of <= on_cpu <= of | {"rpn/ranks"}
    ran = [k.operators for k in report.kernels if k.device == "llvm"]
    assert {name for operators in ran for name in operators} == on_cpu
    assert {p.device for p in report.placements if p.op_type == "Conv"} <= {gpu}
    order = [device for device, _ in report.partitions]
    assert order[0] == order[-1] == gpu and order.count("llvm") == len(on_cpu)
    assert {c["destination"] for c in report.copies} == {gpu, "llvm"}
    tensors = [(c["tensor"], c["destination"]) for c in report.copies]
    assert len(tensors) == len(set(tensors)), "a tensor crosses once each way"


def twice() -> onnx.ModelProto:
    """A suppression of the boxes that another one ranks first, as Faster R-CNN's."""
    node = onnx.helper.make_node
    nodes = [
        node("Sigmoid", ["logits"], ["scores"], name="scores"),
        node("NonMaxSuppression", ["boxes", "scores", "most", "wide"], ["kept"], name="first"),
        node("GatherND", ["scores", "kept"], ["kept_scores"], name="kept_scores"),
        node("Sub", ["scores", "one"], ["sunk"], name="sink"),
        node("ScatterND", ["sunk", "kept", "kept_scores"], ["ranks"], name="rpn/ranks"),
        node("TopK", ["ranks", "count"], ["values", "best"], name="best", axis=2),
        node("Reshape", ["best", "row"], ["which"], name="which"),
        node("Gather", ["boxes", "which"], ["proposals"], name="proposals", axis=1),
        node("NonMaxSuppression", ["proposals", "values", "most", "thin"], ["of"], name="second"),
        node("Cast", ["of"], ["selected"], name="cast", to=onnx.TensorProto.FLOAT),
    ]
    constants = {
        "most": np.array([60]),
        "wide": np.array([0.7], "float32"),
        "thin": np.array([0.3], "float32"),
        "one": np.array(1, "float32"),
        "count": np.array([20]),
        "row": np.array([20]),
    }
    inputs = {"boxes": (1, 60, 4), "logits": (1, 1, 60)}
    return make_model(nodes, inputs, ["proposals", "selected"], constants)


def test_two_suppressions_on_the_cpu(gpu: str) -> None:
    """The devices take turns twice, with as many boxes as were found."""
    model, random = twice(), np.random.default_rng(3)
    corners = random.random((1, 60, 2)) * 3
    boxes = np.concatenate([corners, corners + 0.5 + random.random((1, 60, 2))], -1)
    logits = random.standard_normal((1, 1, 60))
    inputs = {"boxes": boxes.astype("float32"), "logits": logits.astype("float32")}
    compiled = tvm_edge.compile(model, gpu, fallback=["NonMaxSuppression"])
    check_cut(model, compiled.report, gpu)
    actual, expected = compiled.run(inputs), reference(model, inputs)
    assert 2 < len(expected["selected"]) < 20
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)


# Others have one suppression, as SSD above, or are more of the same.
QUICKEST = ("faster_rcnn_head",)


@pytest.mark.parametrize(
    "name", [*QUICKEST, *in_full(*(n for n in DETECTORS if n not in QUICKEST))]
)
def test_where_detectors_are_cut(name: str, gpu: str) -> None:
    model = zoo.build(name, **REDUCED[name])
    check_cut(model, tvm_edge.analyze(model, gpu, fallback=["NonMaxSuppression"]), gpu)


@pytest.mark.full  # minutes of building kernels; what these find is in the three tests above
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, REDUCED[name]) for name in DETECTORS),
        *((name, {}) for name in DETECTORS if name not in HUGE),
    ],
)
def test_suppression_on_the_cpu(name: str, options: Options, gpu: str) -> None:
    """Any detector, cut where ICPP'19 cuts it: the path ran, and the detections are right."""
    model = zoo.build(name, **options)
    inputs = zoo.sample_input(model, seed=1)
    compiled = tvm_edge.compile(model, gpu, fallback=["NonMaxSuppression"])
    actual, expected = compiled.run(inputs), reference(model, inputs)
    assert_close(actual, expected)
    result = compare_detections(actual, expected, score_threshold=score_threshold(model))
    assert result.unmatched == 0
    assert result.matched >= 5  # of the seven that the smallest network finds
    check_cut(model, compiled.report, gpu)


def test_storage_is_planned_on_each_device() -> None:
    """Together about what one device takes; the CPU holds boxes and scores alone."""
    model = zoo.build("ssd_mobilenet_v1", **REDUCED["ssd_mobilenet_v1"])
    several = tvm_edge.analyze(model, "mali-t860", fallback=["NonMaxSuppression"]).memory
    planned = tvm_edge.analyze(model, "llvm").memory
    assert 0.5 * planned.activations < several.activations < 2 * planned.activations
    assert 0 < several.by_device["llvm"] < 0.2 * several.by_device["opencl"]
    # The CPU's are packed: channels that do not fill a block are filled up.
    assert several.weights <= planned.weights < 1.1 * several.weights
