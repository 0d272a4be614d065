"""Pictures of open size, enlarged by whole factors: pixels are repeated, in blocks and fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import reference

node = helper.make_node
SIZES = [(2, 5, 7), (1, 1, 1), (3, 33, 18)]


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, Any], opset: int, dtype: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", 16, "h", "w"])],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _enlarge(factors: tuple[float, float], opset: int, data: str, made: str, **how: Any) -> Any:
    """Return the nodes of a Resize, or an Upsample, and its constants."""
    scales = np.asarray([1, 1, *factors], "float32")
    if opset < 11:
        return [node("Upsample" if opset < 10 else "Resize", [data, "scales"], [made])], {
            "scales": scales
        }
    return [node("Resize", [data, "", "scales"], [made], mode="nearest", **how)], {"scales": scales}


def _agrees(model: onnx.ModelProto, target: str = "llvm") -> Any:
    compiled = tvm_edge.compile(model, target)
    kind = model.graph.input[0].type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng()
    for batch, height, width in SIZES:
        x = (rng.standard_normal((batch, 16, height, width)) * 50).astype(dtype)
        expected = reference(model, {"x": x})["y"]
        found = compiled.run({"x": x})["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-5)
    return compiled.report


@pytest.mark.parametrize(
    ("factors", "opset", "how"),
    [
        ((2, 2), 9, {}),
        ((3, 1), 10, {}),
        ((2, 4), 13, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ((4, 2), 18, {"coordinate_transformation_mode": "half_pixel"}),
        ((3, 3), 19, {"coordinate_transformation_mode": "pytorch_half_pixel"}),
    ],
)
def test_pixels_are_repeated(factors: tuple[int, int], opset: int, how: dict[str, Any]) -> None:
    nodes, weights = _enlarge(factors, opset, "x", "y", **how)
    report = _agrees(_model(nodes, weights, opset))
    names = [kernel.name for kernel in report.kernels]
    assert [name for name in names if not name.startswith("lengths")] == ["resize"]


@pytest.mark.parametrize(
    "how",
    [
        {"coordinate_transformation_mode": "align_corners"},
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"},
    ],
    ids=lambda how: "-".join(how.values()),
)
def test_other_places_are_not(how: dict[str, Any]) -> None:
    nodes, weights = _enlarge((2, 2), 13, "x", "y", **how)
    _agrees(_model(nodes, weights, 13))


def test_whole_numbers_too() -> None:
    nodes, weights = _enlarge((2, 2), 13, "x", "y", coordinate_transformation_mode="asymmetric")
    _agrees(_model(nodes, weights, 13, TensorProto.INT32))


def _pyramid() -> onnx.ModelProto:
    """A picture that is enlarged between convolutions, as in a feature pyramid."""
    rng = np.random.default_rng()
    enlarge, weights = _enlarge((2, 2), 13, "a", "e", coordinate_transformation_mode="asymmetric")
    for name in ("v", "w"):
        weights[name] = (rng.standard_normal((16, 16, 3, 3)) / 12).astype("float32")
    nodes = [
        node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        *enlarge,
        node("Relu", ["e"], ["r"]),
        node("Conv", ["r", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    return _model(nodes, weights, 13)


def test_it_is_fused_in_blocks() -> None:
    report = _agrees(_pyramid())
    (resized,) = (kernel.name for kernel in report.kernels if "resize" in kernel.name)
    assert "relu" in resized and "pack" not in resized


@needs_opencl
def test_it_is_fused_on_a_gpu() -> None:
    nodes, weights = _enlarge((2, 2), 13, "x", "e", coordinate_transformation_mode="asymmetric")
    report = _agrees(_model([*nodes, node("Relu", ["e"], ["y"])], weights, 13), "opencl")
    (resized,) = (kernel for kernel in report.kernels if "resize" in kernel.name)
    assert "relu" in resized.name
    assert resized.device.startswith("opencl")
