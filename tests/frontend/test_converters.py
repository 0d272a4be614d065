"""Operators converted by us, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tvm_edge
from tests.frontend.single import agree, close, single
from tests.onnx_models import make_model, random_input, reference
from tvm_edge.frontend import load_model


def relax_ops(model: onnx.ModelProto) -> list[str]:
    """Operators of the imported main function, as printed."""
    return load_model(model).module["main"].script().splitlines()


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


@pytest.mark.diagonals(2)
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


_SUPPRESSIONS = given(
    boxes=st.integers(1, 90),
    classes=st.integers(1, 3),
    batch=st.integers(1, 2),
    most=st.sampled_from([None, 0, 1, 7, 1000]),
    iou=st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    score=st.sampled_from([None, 0.0, 0.5, 2.0]),
    centre=st.booleans(),
    seed=st.integers(0, 2**31),
)


@settings(max_examples=6, deadline=None)
@_SUPPRESSIONS
def test_non_max_suppression_equals_onnxruntime(**drawn: Any) -> None:
    """Exact indices and order, ties (scores rounded to 0.1) included."""
    check_suppression(**drawn)


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@_SUPPRESSIONS
def test_many_suppressions_equal_onnxruntime(**drawn: Any) -> None:
    check_suppression(**drawn)


def check_suppression(
    boxes: int,
    classes: int,
    batch: int,
    most: int | None,
    iou: float | None,
    score: float | None,
    centre: bool,
    seed: int,
) -> None:
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


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize(
    ("opset", "coordinates"),
    [(10, None), (17, None), (17, "half_pixel"), (17, "output_half_pixel")],
)
def test_roi_align(opset: int, coordinates: str | None, sampling_ratio: int) -> None:
    """Regions of both pictures, some over the edge and one thinner than a pixel."""
    attributes = {"coordinate_transformation_mode": coordinates} if coordinates else {}
    node = helper.make_node(
        "RoiAlign",
        ["x", "regions", "pictures"],
        ["y"],
        output_height=3,
        output_width=2,
        sampling_ratio=sampling_ratio,
        spatial_scale=0.3,
        **attributes,
    )
    model = make_model(
        [node],
        {"x": (2, 3, 9, 11), "regions": (6, 4), "pictures": (6,)},
        ["y"],
        dtypes={"pictures": TensorProto.INT64},
        opset=opset,
    )
    rng = np.random.default_rng(1)
    start = rng.uniform(-6, 20, (6, 2))
    regions = np.concatenate([start, start + rng.uniform(3, 30, (6, 2))], axis=1)
    regions[0, 2:] = regions[0, :2] + 0.5
    inputs = {
        "x": random_input((2, 3, 9, 11)),
        "regions": regions.astype("float32"),
        "pictures": np.array([0, 1, 1, 0, 1, 0]),
    }
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(
        tvm_edge.compile(model, "llvm").run(inputs)["y"], expected, atol=1e-5
    )


SPECIAL = np.asarray(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -7.5, 20.0, -20.0, 90.0], "float32"
)


def special_pairs() -> dict[str, np.ndarray]:
    """Every special value against every other."""
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    return {"a": a, "b": b}


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extrema_keep_nan(operator: str) -> None:
    close(helper.make_node(operator, ["a", "b"], ["y"]), special_pairs(), rtol=0)
    three = {"a": random_input((2, 1, 3)), "b": random_input((4, 1), 1), "c": random_input((3,), 2)}
    close(helper.make_node(operator, ["a", "b", "c"], ["y"]), three, rtol=0)
    integers = {k: (v * 9).astype("int32") for k, v in three.items()}
    close(helper.make_node(operator, ["a", "b", "c"], ["y"]), integers, rtol=0)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("number", [-0.5, np.inf, -np.inf, np.nan])
def test_extrema_of_a_constant_number(operator: str, number: float) -> None:
    for shape in ((), (1,), (1, 1, 1)):  # the last one makes the result's rank
        bound = np.full(shape, number, "float32")
        close(helper.make_node(operator, ["b", "x"], ["y"]), {"x": SPECIAL}, constants={"b": bound})


def test_thresholded_relu_of_nan_is_zero() -> None:
    close(helper.make_node("ThresholdedRelu", ["x"], ["y"], alpha=0.5), {"x": SPECIAL}, rtol=0)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_is_inf_of_one_sign(positive: int, negative: int) -> None:
    node = helper.make_node(
        "IsInf", ["x"], ["y"], detect_positive=positive, detect_negative=negative
    )
    close(node, {"x": SPECIAL}, outputs={"y": TensorProto.BOOL})


@pytest.mark.parametrize("operator", ["Mish", "Softplus", "Cosh", "Sinh"])
def test_functions_far_from_zero(operator: str) -> None:
    """To 2e-6 of each value: small results keep their digits, and large ones stay finite."""
    x = np.concatenate([np.linspace(-88, 88, 1001), np.geomspace(1e-6, 1, 50), [np.nan]])
    close(
        helper.make_node(operator, ["x"], ["y"]), {"x": x.astype("float32")}, rtol=2e-6, atol=1e-30
    )


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("base", ["float32", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int32", "int64"])
def test_pow_of_two_types(base: str, exponent: str) -> None:
    inputs = {
        "a": np.asarray([1, 2, 3, 4, 5, 7], base),
        "b": np.asarray([0, 1, 2, 3, 4, 5], exponent),
    }
    close(helper.make_node("Pow", ["a", "b"], ["y"]), inputs)


def test_float_mod_takes_the_sign_of_the_divisor() -> None:
    """Against NumPy: ONNX Runtime has none of floats without fmod."""
    inputs = special_pairs()
    model = single(helper.make_node("Mod", ["a", "b"], ["y"]), inputs, opset=13)
    ours = tvm_edge.compile(model, "llvm").run(inputs)["y"]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ours, np.mod(inputs["a"], inputs["b"]))


_RESIZES = [
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
]


@pytest.mark.diagonals(4)
@pytest.mark.parametrize("how", _RESIZES, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("scales", [(0.6, 0.8), (2.3, 1.7), (1.0, 0.3), (2.0, 2.0)])
def test_resize_by_scales_that_round(how: dict[str, Any], scales: tuple[float, float]) -> None:
    """TVM divides by the ratio of lengths instead of the scale."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
    factors = np.asarray([1, 1, *scales], "float32")
    close(node, {"x": random_input((1, 2, 7, 9))}, {"scales": factors}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
def test_resize_of_named_axes(policy: str, axes: list[int]) -> None:
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], axes=axes, keep_aspect_ratio_policy=policy
    )
    sizes = np.asarray([5, 13], "int64")
    close(node, {"x": random_input((1, 2, 7, 9))}, {"sizes": sizes}, rtol=0)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_with_antialias(mode: str) -> None:
    """Against onnx's reference: at the border ONNX Runtime leaves out what ONNX repeats."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode, antialias=1)
    x, factors = random_input((1, 2, 12, 16)), np.asarray([1, 1, 0.4, 0.55], "float32")
    model = single(node, {"x": x}, {"scales": factors})
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_resize_of_opset_10_and_upsample() -> None:
    x, factors = {"x": random_input((1, 2, 5, 6))}, {"s": np.asarray([1, 1, 2, 3], "float32")}
    for mode in ("nearest", "linear"):
        close(helper.make_node("Resize", ["x", "s"], ["y"], mode=mode), x, factors, opset=10)
        close(helper.make_node("Upsample", ["x", "s"], ["y"], mode=mode), x, factors, opset=9)
    shorter = {"s": np.asarray([1, 1, 0.6, 1.4], "float32")}
    close(helper.make_node("Resize", ["x", "s"], ["y"]), x, shorter, opset=10)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_11_with_operands_without_elements(mode: str) -> None:
    x, none = {"x": random_input((1, 2, 5, 6))}, np.zeros(0, "float32")
    sizes = np.asarray([1, 2, 10, 18], "int64")
    node = helper.make_node("Resize", ["x", "none", "none", "sizes"], ["y"], mode=mode)
    close(node, x, {"none": none, "sizes": sizes}, opset=11, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"], axis=axis)
    constants = {"depth": np.asarray(5, "int64"), "values": np.asarray([-1, 3], "float32")}
    indices = {"i": np.asarray([[0, 4, -1], [7, 2, -6]], "int64")}
    close(node, indices, constants, outputs={"y": TensorProto.FLOAT})


def test_eye_like_of_another_type() -> None:
    node = helper.make_node("EyeLike", ["x"], ["y"], k=-1, dtype=TensorProto.DOUBLE)
    x = {"x": np.zeros((3, 4), "int32")}
    close(node, x, outputs={"y": TensorProto.DOUBLE}, opset=17)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization_returns_its_statistics(axis: int) -> None:
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y", "m", "d"], axis=axis)
    x = random_input((2, 3, 4))
    shape = x.shape[axis:]
    constants = {"s": random_input(shape, 1), "b": random_input(shape, 2)}
    close(node, {"x": x}, constants, rtol=1e-5, atol=1e-6)


def test_transposed_convolution_to_an_output_shape() -> None:
    weights = {"w": random_input((2, 3, 3, 3), 1)}
    for shape, strides in (([10, 8], [3, 2]), ([7, 5], [3, 2])):
        node = helper.make_node(
            "ConvTranspose", ["x", "w"], ["y"], output_shape=shape, strides=strides
        )
        close(node, {"x": random_input((1, 2, 3, 3))}, weights, rtol=1e-5, atol=1e-6)


def test_dilated_transposed_convolution() -> None:
    """Its weights are inlined into the convolution, whose pattern no rule then knows."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], dilations=[2, 2])
    close(node, {"x": random_input((1, 1, 3, 3))}, {"w": random_input((1, 1, 2, 2))}, rtol=1e-5)


def test_dropout_for_inference() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])
    close(node, {"x": random_input((3,))}, outputs={"mask": TensorProto.BOOL}, rtol=0)


def test_dropout_in_training_is_refused() -> None:
    node = helper.make_node("Dropout", ["x", "", "t"], ["y"])
    model = single(node, {"x": random_input((1, 2, 4, 4))}, {"t": np.asarray(True)}, opset=21)
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match="training") as caught:
        tvm_edge.compile(model, "llvm")
    assert caught.value.operators == ("Dropout",)


def test_unnamed_nodes_in_the_branches_of_an_if() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(operator, TensorProto.FLOAT, [3])
        return helper.make_graph(
            [helper.make_node(operator, ["x"], [operator])], operator, [], [output]
        )

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Abs"), else_branch=branch("Neg")
    )
    for condition in (True, False):
        inputs = {"c": np.asarray(condition), "x": random_input((3,))}
        model = make_model([node], {"c": (), "x": (3,)}, ["y"], dtypes={"c": TensorProto.BOOL})
        agree(model, inputs)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_a_shift_by_all_bits_leaves_none(dtype: str, direction: str, target: str) -> None:
    """In C it has no value, and OpenCL shifts by what is left of a division by the bits."""
    if target == "opencl" and not (tvm.runtime.enabled("opencl") and tvm.opencl(0).exist):
        pytest.skip("no opencl device on this machine")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    bits = 8 * np.dtype(dtype).itemsize
    model = make_model(
        [helper.make_node("BitShift", ["x", "by"], ["y"], direction=direction)],
        {"x": (5,), "by": (5,)},
        ["y"],
        dtypes={"x": kind, "by": kind, "y": kind},
    )
    inputs = {
        "x": np.full(5, 201, dtype),
        "by": np.array([0, 1, bits - 1, bits, bits + 3], dtype),
    }
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    expected = shift(inputs["x"], inputs["by"])
    compiled = tvm_edge.compile(model, target, fallback="none")
    np.testing.assert_array_equal(compiled.run(inputs)["y"], expected)
