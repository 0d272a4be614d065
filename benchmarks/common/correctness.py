"""Comparison of a network's outputs with ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "TOLERANCE",
    "compare_outputs",
    "load_expected",
    "load_inputs",
    "relative_error",
    "write_expected",
    "write_reference",
]

TOLERANCE = 1e-4
"""Error that is allowed, of an output's largest value."""


def write_reference(name: str, folder: Path) -> dict[str, Any]:
    """A job: write a network of the zoo, an input, and ONNX Runtime's outputs.

    ``NAME.onnx``, ``NAME.inputs.npz`` and ``NAME.expected.npz``.
    """
    from tvm_edge import zoo

    zoo.save(name, folder / f"{name}.onnx")
    write_expected(name, zoo.sample_input(name), folder)
    return {}


def write_expected(name: str, inputs: Mapping[str, Any], folder: Path) -> None:
    """Write an input of ``NAME.onnx``, and what ONNX Runtime makes of it."""
    import onnxruntime

    path = folder / f"{name}.onnx"
    options = onnxruntime.SessionOptions()
    # Or products of bytes saturate in 16 bits on CPUs that have AVX2 and no more.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = 1  # several networks are prepared at once
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    expected = dict(zip(outputs, session.run(outputs, inputs), strict=True))
    np.savez(folder / f"{name}.inputs.npz", **inputs)
    np.savez(folder / f"{name}.expected.npz", **expected)


def load_inputs(name: str, folder: Path) -> dict[str, np.ndarray]:
    """The input of a network that :func:`write_reference` wrote."""
    return dict(np.load(folder / f"{name}.inputs.npz"))


def load_expected(name: str, folder: Path) -> dict[str, np.ndarray]:
    """ONNX Runtime's outputs of a network, as :func:`write_reference` wrote them."""
    return dict(np.load(folder / f"{name}.expected.npz"))


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected value."""
    if not expected.size:
        return 0.0
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(actual - expected).max()) / scale


def compare_outputs(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    path: Path,
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:
    """Compare one run's outputs: numbers by their error, detections one to one.

    Parameters
    ----------
    actual, expected : mapping of str to np.ndarray
    path : Path
        The ONNX model, which knows the detections' threshold.
    tolerance : float
        Error that is allowed.

    Returns
    -------
    dict
        ``error``, the largest of the float32 outputs relative to the output's largest value;
        ``right``; and for a network that has them ``detections``.
    """
    from tests.detections import compare_detections

    dense = [
        tensor
        for tensor, value in expected.items()
        if value.dtype == np.float32 and not tensor.startswith("detection")
    ]
    error = max(relative_error(actual[tensor], expected[tensor]) for tensor in dense)
    result: dict[str, Any] = {"error": error, "right": bool(error <= tolerance)}
    if "detection_boxes" in expected:
        found = compare_detections(
            dict(actual), dict(expected), score_threshold=_score_threshold(path)
        )
        result["detections"] = f"{found.matched}, {found.excused} at a tie"
        result["right"] = result["right"] and found.unmatched == 0 and found.matched >= 10
    return result


def _score_threshold(path: Path) -> float:
    """Threshold of the last NonMaxSuppression."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    nms = [node for node in model.graph.node if node.op_type == "NonMaxSuppression"][-1]
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    return float(onnx.numpy_helper.to_array(weights[nms.input[4]]).item())
