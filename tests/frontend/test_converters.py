"""Operators converted by us, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference
from tvm_edge.frontend import load_model


def relax_ops(model: onnx.ModelProto) -> list[str]:
    """Operators of the imported main function, as printed."""
    return load_model(model).module["main"].script().splitlines()


def agree(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    """Our outputs equal ONNX Runtime's to the last bit."""
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_array_equal(ours[name], expected)


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_sum_is_a_chain_of_adds(terms: int) -> None:
    names = [f"x{i}" for i in range(terms)]
    model = make_model(
        [helper.make_node("Sum", names, ["y"], name="sum")],
        {name: (2, 3) if i else (1, 3) for i, name in enumerate(names)},
        ["y"],
    )
    lines = "\n".join(relax_ops(model))
    assert "stack" not in lines and lines.count("R.add") == terms - 1
    agree(
        model,
        {
            v.name: random_input([d.dim_value for d in v.type.tensor_type.shape.dim], i)
            for i, v in enumerate(model.graph.input)
        },
    )


@pytest.mark.filterwarnings("ignore::tvm_edge.errors.TvmEdgeWarning")  # the NaN bound
@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 6.0), (None, 0.5), (-0.5, None), (None, None), (np.nan, 1.0), (1.0, 0.0)],
)
def test_clip(low: float | None, high: float | None) -> None:
    limits = {
        name: np.asarray(value, "float32")
        for name, value in (("low", low), ("high", high))
        if value is not None
    }
    inputs = ["x", "low" if "low" in limits else "", "high" if "high" in limits else ""]
    model = make_model(
        [helper.make_node("Clip", inputs, ["y"], name="clip")], {"x": (64,)}, ["y"], limits
    )
    if low is None or not np.isnan(low):
        assert "isnan" not in "\n".join(relax_ops(model))
    agree(model, {"x": random_input((64,)) * 4})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[0], [2, -1, 0], [[1, 1], [-3, 0]]])
def test_gather_constant_indices(axis: int, indices: list[int]) -> None:
    model = make_model(
        [helper.make_node("Gather", ["x", "i"], ["y"], name="gather", axis=axis)],
        {"x": (3, 4)},
        ["y"],
        {"i": np.asarray(indices, "int64")},
    )
    assert "R.where" not in "\n".join(relax_ops(model))
    agree(model, {"x": random_input((3, 4))})


def nms_model(
    boxes: int, classes: int, batch: int, limits: list[np.ndarray | None], centre: bool
) -> onnx.ModelProto:
    """A single NonMaxSuppression; limits that are None are left out."""
    names = ["most", "iou", "score"]
    given_limits = {n: v for n, v in zip(names, limits, strict=True) if v is not None}
    inputs = ["boxes", "scores", *(n if n in given_limits else "" for n in names)]
    while inputs[-1] == "":
        inputs.pop()
    return make_model(
        [helper.make_node("NonMaxSuppression", inputs, ["y"], name="n", center_point_box=centre)],
        {"boxes": (batch, boxes, 4), "scores": (batch, classes, boxes)},
        ["y"],
        given_limits,
        dtypes={"y": TensorProto.INT64},
    )


@settings(max_examples=12, deadline=None)
@given(
    boxes=st.integers(1, 90),
    classes=st.integers(1, 3),
    batch=st.integers(1, 2),
    most=st.sampled_from([None, 0, 1, 7, 1000]),
    iou=st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    score=st.sampled_from([None, 0.0, 0.5, 2.0]),
    centre=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_non_max_suppression_equals_onnxruntime(
    boxes: int,
    classes: int,
    batch: int,
    most: int | None,
    iou: float | None,
    score: float | None,
    centre: bool,
    seed: int,
) -> None:
    """Exact indices and order, ties (scores rounded to 0.1) included."""
    limits = [
        None if most is None else np.asarray([most], "int64"),
        None if iou is None else np.asarray([iou], "float32"),
        None if score is None else np.asarray([score], "float32"),
    ]
    generator = np.random.default_rng(seed)
    agree(
        nms_model(boxes, classes, batch, limits, centre),
        {
            "boxes": generator.random((batch, boxes, 4), "float32"),
            "scores": generator.random((batch, classes, boxes), "float32").round(1),
        },
    )


def test_non_max_suppression_names_its_dynamic_length() -> None:
    limits = [np.asarray([5], "int64"), np.asarray([0.5], "float32"), None]
    model = nms_model(20, 2, 1, limits, False)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "detections"
    compiled = tvm_edge.compile(model, "llvm")
    assert compiled.outputs[0].shape == ("detections", 3)
    kernels = compiled.report.kernels
    assert [k.name for k in kernels] == ["nms_select", "nms_shape", "nms_fill"]
    assert all(k.operators == ("n",) and k.origin == "heuristic" for k in kernels)
