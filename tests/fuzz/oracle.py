"""ONNX Runtime as the judge of results; in a process of its own, since models may kill it, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from tests.fuzz.worker import Outcome, serve
from tests.onnx_models import session

__all__ = ["difference"]

_TOLERANCE = {"float16": 1e-2, "bfloat16": 4e-2}


def difference(actual: np.ndarray, expected: np.ndarray) -> str:
    """Describe the difference of an output from ONNX Runtime's; empty if it agrees.

    Floats agree to 1e-4 of the largest finite value, with NaN and infinity in the same places;
    other types are equal.
    """
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    if actual.dtype != expected.dtype:
        return f"type {actual.dtype}, expected {expected.dtype}"
    if expected.dtype.kind in "biu":
        unequal = actual != expected
        if unequal.any():
            first = tuple(int(i[0]) for i in np.nonzero(unequal)) if unequal.ndim else ()
            return (
                f"{unequal.sum()} of {unequal.size} differ, {first}: {actual[first]}, "
                f"expected {expected[first]}"
            )
        return ""
    tolerance = _TOLERANCE.get(expected.dtype.name, 1e-4)
    actual, expected = actual.astype("float64"), expected.astype("float64")
    if (np.isnan(actual) != np.isnan(expected)).any():
        return f"{np.isnan(actual).sum()} NaN, expected {np.isnan(expected).sum()}"
    infinite = np.isinf(actual) | np.isinf(expected)
    if (actual[infinite] != expected[infinite]).any():
        return f"{np.isinf(actual).sum()} infinite, expected {np.isinf(expected).sum()}"
    finite = ~infinite & ~np.isnan(expected)
    if not finite.any():
        return ""
    scale = max(float(np.abs(expected[finite]).max()), 1e-30)
    error = float(np.abs(actual[finite] - expected[finite]).max()) / scale
    return f"error {error:.2g} of the largest" if error > tolerance else ""


def judge(path: str, results: str) -> Outcome:
    """Run a model as `results` (inputs and outputs that a worker saved) says, and compare."""
    saved = np.load(results)
    names = json.loads(str(saved["names"]))
    feeds = {name: saved[f"i{i}"] for i, name in enumerate(names["inputs"])}
    try:
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
        expected = session(model).run(names["outputs"], feeds)
    except Exception as err:  # the model is its problem, whatever it raises
        return Outcome("refused", str(err)[:300])
    for i, (name, value) in enumerate(zip(names["outputs"], expected, strict=True)):
        if not isinstance(value, np.ndarray):
            return Outcome("refused", f"{name} is no tensor")
        text = difference(saved[f"o{i}"], value)
        if text:
            return Outcome("wrong", f"{name}: {text}", text.split()[0])
    return Outcome("ok")


if __name__ == "__main__":
    serve(judge, AssertionError)
