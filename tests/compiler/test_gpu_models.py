"""Zoo networks on a GPU agree with ONNX Runtime, and the report says what ran where."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.compiler.test_zoo_accuracy import (
    CLASSIFIERS,
    REDUCED,
    TOLERANCE,
    score_threshold,
)
from tests.detections import compare_detections
from tests.onnx_models import reference, relative_error
from tvm_edge import zoo

Options = dict[str, object]


def sizes(*names: str) -> list[object]:
    """Networks reduced, and at full size for ``make test-full``."""
    reduced = [pytest.param(name, REDUCED[name], id=f"{name}-reduced") for name in names]
    return reduced + [pytest.param(name, {}, id=name, marks=pytest.mark.full) for name in names]


@pytest.mark.parametrize(("name", "options"), sizes(*CLASSIFIERS))
def test_classifiers(name: str, options: Options, gpu: str) -> None:
    model = zoo.build(name, **options)
    inputs = zoo.sample_input(model, seed=1)
    compiled = tvm_edge.compile(model, gpu, fallback="error")
    actual, expected = compiled.run(inputs), reference(model, inputs)
    for tensor, value in expected.items():
        assert relative_error(actual[tensor], value) <= TOLERANCE, tensor
    report = compiled.report
    assert {p.device for p in report.placements} <= {gpu, ""}
    assert (len(report.partitions), report.copies) == (1, ())
    assert {kernel.origin for kernel in report.kernels} == {"heuristic"}


@pytest.mark.parametrize(("name", "options"), sizes("ssd_mobilenet_v1"))
def test_detector(name: str, options: Options, gpu: str) -> None:
    """Everything up to the suppression on the GPU, that and what follows on the CPU."""
    model = zoo.build(name, **options)
    compiled = tvm_edge.compile(model, gpu)
    report = compiled.report
    on_cpu = {p.operator: p.reason for p in report.placements if p.device == "llvm"}
    assert "suppression" in on_cpu["postprocess/nms"]
    assert len(on_cpu) == 6
    assert [device for device, _ in report.partitions] == [gpu, "llvm"]
    assert [c["tensor"] for c in report.copies] == [
        "postprocess/decode/boxes",
        "postprocess/scores/scores",
    ]
    assert all(c["source"] == gpu and c["bytes"] > 0 for c in report.copies)
    inputs = zoo.sample_input(model)
    actual, expected = compiled.run(inputs), reference(model, inputs)
    for tensor in ("boxes", "scores"):
        assert relative_error(actual[tensor], expected[tensor]) <= TOLERANCE, tensor
    threshold = score_threshold(model)
    result = compare_detections(actual, expected, score_threshold=threshold)
    assert result.unmatched == 0
    assert result.matched >= 10
    suppression = onnx.utils.Extractor(model).extract_model(["boxes", "scores"], ["selected"])
    tail = reference(suppression, {"boxes": actual["boxes"], "scores": actual["scores"]})
    np.testing.assert_array_equal(actual["selected"], tail["selected"])


def test_storage_is_reused_where_it_is_not_planned() -> None:
    """TVM's planner mixes devices up, so the report goes by what lives at the same time."""
    model = zoo.build("ssd_mobilenet_v1", **REDUCED["ssd_mobilenet_v1"])
    several = tvm_edge.analyze(model, "mali-t860").memory
    planned = tvm_edge.analyze(model, "llvm").memory
    assert 0.5 * planned.activations < several.activations < 2 * planned.activations
    assert several.weights == planned.weights
