"""Whether a network's outputs are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["TOLERANCE", "compare_outputs"]

TOLERANCE = 1e-4
"""Of an output's largest value."""


def compare_outputs(
    actual: Mapping[str, Any], expected: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Compare one run's outputs: numbers by their error, detections one to one.

    Parameters
    ----------
    actual, expected : mapping of str to np.ndarray
    path : Path
        The ONNX model, which knows the detections' threshold.

    Returns
    -------
    dict
        ``error``, the largest of the float32 outputs relative to the output's largest value;
        ``right``; and for a network that has them ``detections``.
    """
    from tests.detections import compare_detections
    from tests.onnx_models import relative_error

    dense = [
        tensor
        for tensor, value in expected.items()
        if value.dtype == np.float32 and not tensor.startswith("detection")
    ]
    error = max(relative_error(actual[tensor], expected[tensor]) for tensor in dense)
    result: dict[str, Any] = {"error": error, "right": bool(error <= TOLERANCE)}
    if "detection_boxes" in expected:
        found = compare_detections(
            dict(actual), dict(expected), score_threshold=_score_threshold(path)
        )
        result["detections"] = f"{found.matched}, {found.excused} at a tie"
        result["right"] = result["right"] and found.unmatched == 0 and found.matched >= 10
    return result


def _score_threshold(path: Path) -> float:
    """Of the last NonMaxSuppression."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    nms = [node for node in model.graph.node if node.op_type == "NonMaxSuppression"][-1]
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    return float(onnx.numpy_helper.to_array(weights[nms.input[4]]).item())
