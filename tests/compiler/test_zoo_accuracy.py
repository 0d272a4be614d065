"""Zoo networks on LLVM agree with ONNX Runtime, in their outputs and inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tvm_edge
from tests.detections import compare_detections
from tests.marks import in_full
from tests.onnx_models import reference, relative_error
from tests.zoo.networks import DETECTORS, HUGE
from tvm_edge import zoo

TOLERANCE = 1e-4  # of each tensor's largest value, as DESIGN says
# What `make test` compiles as for use: branches that are joined, residuals with depthwise
# convolutions, heads.
VARIED = ("mobilenet_v2", "squeezenet1_0", "ssd_mobilenet_v1")
# And with tensors inside as outputs.
THOROUGH = ("squeezenet1_0",)
CLASSIFIERS = ("squeezenet1_0", "resnet50_v1", "mobilenet_v2")
REDUCED = {
    "resnet50_v1": {"image_size": 64, "width": 0.25},
    "resnet50_v2": {"image_size": 64, "width": 0.25},
    "mobilenet_v2": {"image_size": 64, "width": 0.5},
    "squeezenet1_0": {"image_size": 64, "width": 0.5},
    "mobilenet_v1": {"image_size": 64, "width": 0.5},
    "inception_v3": {"image_size": 75, "width": 0.25},
    "densenet121": {"image_size": 64, "width": 0.25},
    "vgg16": {"image_size": 64, "width": 0.25},
    "shufflenet_v2": {"image_size": 64, "width": 0.5},
    "googlenet": {"image_size": 64, "width": 0.5},
    "deeplab_v3": {"image_size": 64, "width": 0.5},
    "yolov1": {"image_size": 256, "width": 0.25},
    "yolov1_large": {"image_size": 256, "width": 0.25},
    "yolov1_medium": {"image_size": 256, "width": 0.25},
    "yolov1_small": {"image_size": 256, "width": 0.25},
    "nasnet_mobile": {"image_size": 64, "width": 0.25},
    "vgg19": {"image_size": 64, "width": 0.25},
    "ssd_mobilenet_v1": {"image_size": 128, "width": 0.5},
    "ssd_mobilenet_v1_512": {"image_size": 192, "width": 0.25},
    "ssd_resnet50_v1": {"image_size": 192, "width": 0.25},
    "yolov3": {"image_size": 128, "width": 0.125},
    "faster_rcnn_head": {"image_size": 128, "width": 0.25},
}


def networks(quick: Collection[str], huge: Collection[str] = ()) -> list[object]:
    """The `quick` networks reduced, and every one at full size for ``make test-full``.

    Huge ones are there only if in `huge`.
    """
    reduced = [
        pytest.param(name, REDUCED[name], id=f"{name}-reduced")
        for name in zoo.names()
        if name in quick
    ]
    full = [
        pytest.param(name, {}, id=name, marks=pytest.mark.full)
        for name in zoo.names()
        if name not in HUGE or name in huge
    ]
    return reduced + full


Made = tuple[onnx.ModelProto, tvm_edge.CompiledModel]


@cache
def reduced(name: str) -> Made:
    """A small network and what is made of it; several tests look at it."""
    return made(name, REDUCED[name])


def made(name: str, options: Mapping[str, object]) -> Made:
    """A network and what is made of it, not kept."""
    model = zoo.build(name, **options)
    return model, tvm_edge.compile(model, "llvm")


def with_intermediates(model: onnx.ModelProto, count: int) -> tuple[onnx.ModelProto, list[str]]:
    """`model` with `count` float tensors from evenly spaced depths as further outputs."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    known = {v.name: v for v in model.graph.value_info}
    inside = [
        known[node.output[0]]
        for node in model.graph.node
        if node.output[0] in known
        and node.output[0] not in outputs
        and known[node.output[0]].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        and all(d.HasField("dim_value") for d in known[node.output[0]].type.tensor_type.shape.dim)
    ]
    picked = [inside[round(i * (len(inside) - 1) / (count - 1))] for i in range(count)]
    exposed.graph.output.extend(picked)
    return exposed, [value.name for value in picked]


@pytest.mark.parametrize(("name", "options"), networks(quick=THOROUGH))
def test_outputs_and_intermediates(name: str, options: dict[str, object], optimised: None) -> None:
    """Kernels as users have them, which other tests of `make test` leave to child processes."""
    model, inside = with_intermediates(zoo.build(name, **options), 8)
    assert len(set(inside)) == 8
    inputs = zoo.sample_input(model)
    expected = reference(model, inputs)
    actual = tvm_edge.compile(model, "llvm").run(inputs)
    for tensor, value in expected.items():
        if value.dtype != np.float32 or tensor.startswith("detection"):
            continue  # detections: test_detections
        assert actual[tensor].shape == value.shape
        assert relative_error(actual[tensor], value) <= TOLERANCE, tensor


@pytest.mark.parametrize(("name", "options"), networks(quick=VARIED, huge=HUGE))
def test_as_compiled_for_use(name: str, options: dict[str, object]) -> None:
    """Without further outputs, so that everything fuses; every kernel has a schedule of ours."""
    model, compiled = reduced(name) if options else made(name, options)
    inputs = zoo.sample_input(model, seed=3)
    expected, actual = reference(model, inputs), compiled.run(inputs)
    for tensor, value in expected.items():
        if value.dtype == np.float32 and not tensor.startswith("detection"):
            assert relative_error(actual[tensor], value) <= TOLERANCE, tensor
    if "segmentation" in actual:
        # Exact for identical logits; rounding decides where two classes are as likely.
        np.testing.assert_array_equal(actual["segmentation"], actual["logits"].argmax(axis=1))
    report = compiled.report
    assert {p.device for p in report.placements} <= {"llvm", ""}
    convolutions = [p for p in report.placements if p.op_type in ("Conv", "Gemm")]
    assert convolutions and all(p.device == "llvm" for p in convolutions)
    heavy = {o for k in report.kernels if k.origin != "fallback" for o in k.operators}
    assert {p.operator for p in convolutions} <= heavy
    assert len(report.kernels) < 0.65 * len(report.placements)  # element-wise tails are fused


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, REDUCED[name], id=f"{name}-reduced", marks=marks)
        # Faster R-CNN is in `make test` on a GPU, with its suppressions on the CPU.
        for name, marks in (("ssd_mobilenet_v1", ()), ("faster_rcnn_head", pytest.mark.full))
    ]
    + [
        pytest.param(name, {}, id=name, marks=pytest.mark.full)
        for name in DETECTORS
        if name not in HUGE
    ],
)
def test_detections(
    name: str, options: dict[str, object], record_property: pytest.RecordProperty
) -> None:
    """One to one with ONNX Runtime's; rounding may decide for few candidates."""
    model, compiled = reduced(name) if options else made(name, options)
    threshold = score_threshold(model)
    for seed in range(2):
        inputs = zoo.sample_input(model, seed=seed)
        ours, theirs = compiled.run(inputs), reference(model, inputs)
        for tensor in ("boxes", "scores"):
            assert relative_error(ours[tensor], theirs[tensor]) <= TOLERANCE, tensor
        result = compare_detections(ours, theirs, score_threshold=threshold)
        record_property(f"excused, seed {seed}", result.excused)
        assert result.unmatched == 0
        assert result.matched >= 10
        assert result.excused <= 0.02 * result.matched + 1


def score_threshold(model: onnx.ModelProto) -> float:
    """Of the model's last NonMaxSuppression."""
    nms = next(n for n in reversed(model.graph.node) if n.op_type == "NonMaxSuppression")
    tensor = next(t for t in model.graph.initializer if t.name == nms.input[4])
    return float(numpy_helper.to_array(tensor).item())


def test_selected_indices_are_exact_for_identical_boxes_and_scores() -> None:
    """ONNX Runtime's suppression, fed our boxes and scores, selects our rows in our order."""
    model, compiled = reduced("ssd_mobilenet_v1")
    ours = compiled.run(zoo.sample_input(model))
    tail = onnx.utils.Extractor(model).extract_model(["boxes", "scores"], ["selected"])
    theirs = reference(tail, {"boxes": ours["boxes"], "scores": ours["scores"]})
    np.testing.assert_array_equal(ours["selected"], theirs["selected"])


@pytest.mark.parametrize("name", [CLASSIFIERS[0], *in_full(*CLASSIFIERS[1:])])
def test_one_weight_or_one_input_block_moves_the_output(name: str) -> None:
    """An error in either would show: the output moves by over 100 times the tolerance."""
    kept, compiled = reduced(name)
    inputs = zoo.sample_input(kept)
    base = compiled.run(inputs)["logits"]
    bar = 100 * TOLERANCE

    blocked = {"data": inputs["data"].copy()}
    blocked["data"][..., 16:32, 16:32] += 1.0
    moved = compiled.run(blocked)["logits"]
    assert relative_error(moved, base) > bar

    model = onnx.ModelProto()
    model.CopyFrom(kept)
    weight = next(t for t in model.graph.initializer if len(t.dims) == 4)
    value = numpy_helper.to_array(weight).copy()
    largest = np.unravel_index(np.abs(value).argmax(), value.shape)
    value[largest] *= -1.0
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    moved = tvm_edge.compile(model, "llvm").run(inputs)["logits"]
    assert relative_error(moved, base) > bar
