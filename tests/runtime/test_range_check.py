"""Outputs that float16 tensors made infinite are warned of."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input
from tvm_edge.errors import TvmEdgeWarning

MODEL = make_model(
    [
        helper.make_node("Conv", ["x", "w"], ["c"], name="loud"),
        helper.make_node("Conv", ["c", "v"], ["y"], name="quiet"),
    ],
    {"x": (1, 8, 5, 6)},
    ["y"],
    {
        "w": np.full((8, 8, 1, 1), 100.0, "float32"),
        "v": np.full((4, 8, 1, 1), 1e-3, "float32"),
    },
)
LOUD = {"x": 100 + random_input((1, 8, 5, 6))}


@pytest.fixture
def model() -> tvm_edge.CompiledModel:
    return tvm_edge.compile(MODEL, "llvm", precision="float16", tuning_logs=False)


def test_an_overflow_between_two_layers_is_said(model: tvm_edge.CompiledModel) -> None:
    said = r"'y' has infinity or NaN.*precision='float16'.*65,504.*--keep-float32.*compare"
    with pytest.warns(TvmEdgeWarning, match=said):
        outputs = model.run(LOUD)
    assert not np.isfinite(outputs["y"]).all()
    with pytest.warns(TvmEdgeWarning, match=said):
        model.run_async(LOUD).result()
    with pytest.warns(TvmEdgeWarning, match=said), model.stream([LOUD]) as stream:
        list(stream)


def test_what_fits_and_what_is_asked_for_is_not(model: tvm_edge.CompiledModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.run({"x": LOUD["x"] / 100})
        whole = tvm_edge.compile(MODEL, "llvm", tuning_logs=False)
        whole.run({"x": np.full((1, 8, 5, 6), np.inf, "float32")})


def test_an_exception_mends_it() -> None:
    options = {"precision": "float16", "precision_exceptions": ["quiet"], "tuning_logs": False}
    mended = tvm_edge.compile(MODEL, "llvm", **options)
    expected = tvm_edge.compile(MODEL, "llvm", tuning_logs=False).run(LOUD)["y"]
    np.testing.assert_allclose(mended.run(LOUD)["y"], expected, rtol=5e-3)
