"""Networks as exporters write them, small, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full, needs_opencl
from tests.models.corpus import FAMILIES, GENERATORS
from tests.models.registry import Exported
from tests.onnx_models import reference

TOLERANCE = 1e-4  # of each tensor's largest value, as DESIGN says

DETECTORS = {
    "centernet",
    "rt_detr",
    "torchvision_faster_rcnn",
    "torchvision_retinanet",
    "torchvision_ssd",
    "ultralytics_nms",
}
"""Results are rows by score: where two scores are a last bit apart, rounding orders them."""

MORE_OF_THE_SAME = (
    "crnn_gru",  # lstm_ctc
    "deeplab",  # tf_dilated, and feature_pyramid
    "detr",  # rt_detr
    "keras_mobilenet",  # efficientnet, and keras_separable_lstm
    "levit",  # swin, and efficientnet
    "maxvit",  # swin, and efficientnet
    "paddle_text_recognition",  # paddle_text_recognition_svtr
    "torchvision_retinanet",  # torchvision_faster_rcnn, and feature_pyramid
    "torchvision_ssd",  # torchvision_faster_rcnn
    "ultralytics_detect",  # ultralytics_nms, and the head of ultralytics_segment
    "ultralytics_obb",  # the head of ultralytics_segment
    "ultralytics_pose",  # the head of ultralytics_segment
    "vit",  # depth_anything
    "yolox",  # ultralytics_nms
)
"""Networks whose kinds of graph are those of the network beside them."""

ON_OPENCL = (
    "feature_pyramid",
    "keras_resizing",
    "quantized_mobilenet",
    "silero_vad",
    "swin",
    "ultralytics_nms",
    "video_matting",
)
"""Networks that differ in kind: pocl builds the kernels of each for seconds."""

ON_BOTH = ("quantized_mobilenet", "silero_vad")
"""Those of `ON_OPENCL` that `make test` runs on the CPU as well.

They differ there: int8, and states. The others are imported in the same way for both.
"""

LEFT_OUT = {*MORE_OF_THE_SAME, *ON_OPENCL} - {*ON_BOTH}


def agrees(made: Exported, target: str, detections: bool) -> None:
    model, inputs = made
    shapes = {name: value.shape for name, value in inputs.items()}
    found = tvm_edge.compile(model, target, input_shapes=shapes).run(inputs)
    expected = reference(model, inputs)
    for name, value in expected.items():
        assert value.size, name
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype, name
    if detections:
        assert_same_rows(found, expected)
        return
    for name, value in expected.items():
        if value.dtype.kind != "f":
            np.testing.assert_array_equal(found[name], value, err_msg=name)
            continue
        limit = TOLERANCE * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)


def assert_same_rows(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Each row, of all results beside each other, is one of the other side's that is still free."""

    def rows(results: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [results[name].astype("float64") for name in expected]
        parts = [part[0] if part.ndim > 2 else part for part in parts]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    free, wanted = rows(found), rows(expected)
    limits = TOLERANCE * np.abs(wanted).max(axis=0)
    for row in wanted:
        fits = (np.abs(free - row) <= limits).all(axis=1)
        assert fits.any(), row
        free = np.delete(free, fits.argmax(), axis=0)


@pytest.mark.parametrize("name", [*sorted({*GENERATORS} - LEFT_OUT), *in_full(*sorted(LEFT_OUT))])
def test_on_the_cpu(name: str) -> None:
    agrees(GENERATORS[name](0), "llvm", name in DETECTORS)


@needs_opencl
@pytest.mark.parametrize("name", [*ON_OPENCL, *in_full(*sorted({*GENERATORS} - {*ON_OPENCL}))])
def test_on_opencl(name: str) -> None:
    agrees(GENERATORS[name](0), "opencl", name in DETECTORS)


def test_a_seed_makes_one_model() -> None:
    for family in FAMILIES:
        own = [make for make in GENERATORS.values() if make.__module__ == family.__name__]
        assert own, family.__name__
        first, again, other = (own[0](seed)[0].SerializeToString() for seed in (1, 1, 2))
        assert first == again != other
