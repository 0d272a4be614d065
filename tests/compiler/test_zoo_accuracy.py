"""Zoo networks on LLVM agree with ONNX Runtime, in their outputs and inside."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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
from tests.onnx_models import reference, relative_error
from tests.zoo.networks import DETECTORS, HUGE
from tvm_edge import zoo

# What `make test` compiles as for use: residuals with depthwise convolutions, heads.
VARIED = ("mobilenet_v2", "ssd_mobilenet_v1")
# And with tensors inside as outputs: branches that are joined.
THOROUGH = ("squeezenet1_0",)
CLASSIFIERS = ("mobilenet_v2", "resnet50_v1", "squeezenet1_0")


Made = tuple[onnx.ModelProto, tvm_edge.CompiledModel]


@cache
def reduced(name: str) -> Made:
    """A small network and what is made of it; several tests look at it."""
    return made(name, REDUCED[name])


def made(name: str, options: Mapping[str, object]) -> Made:
    """A network and what is made of it, not kept."""
    model = zoo.build(name, **options)
    return model, tvm_edge.compile(model, "llvm")


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
