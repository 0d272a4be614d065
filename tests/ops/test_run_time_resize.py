"""Resize of, and to, lengths that only the run tells, against ONNX Runtime.

``crop`` is cut from ``x`` by two lengths that the run calculates; the scales, the new lengths and
the region come from kernels as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import in_full, needs_opencl
from tests.onnx_models import reference

node = helper.make_node
FULL = (1, 2, 11, 13)

CONSTANTS = {
    "none": np.zeros(0, "float32"),
    "kept": np.asarray([1, 2], "int64"),
    "ones": np.asarray([1, 1], "float32"),
    "zeros": np.asarray([0, 0], "int64"),
    "zero": np.asarray([0], "int64"),
    "two": np.asarray([2], "int64"),
    "last": np.asarray([2, 3], "int64"),
    "nought": np.asarray(0, "float32"),
}

# What each run has: lengths of the crop, new lengths, scales, and the region.
RUNS = [
    ((7, 10), (9, 5), (1.3, 0.6)),
    ((11, 13), (1, 12), (0.3, 0.95)),
    ((1, 3), (4, 1), (2.3, 2.3)),
    ((10, 10), (23, 40), (2.3, 0.15)),
]


def model_of(
    by: str, *, opset: int = 19, named: bool = False, crop: bool = True, **how: Any
) -> onnx.ModelProto:
    """A model of ``x``, the crop's lengths and an operand: of scales or sizes, and the region."""
    nodes = [node("Cast", ["lengths"], ["ends"], to=TensorProto.INT64)]
    data = "x"
    if crop:
        nodes.append(node("Slice", ["x", "zeros", "ends", "last"], ["crop"]))
        data = "crop"
    nodes.append(node("Cast", ["sizes"], ["new"], to=TensorProto.INT64))
    nodes.append(node("Add", ["factors", "nought"], ["scale"]))
    if not named:
        nodes.append(node("Concat", ["kept", "new"], ["size"], axis=0))
        nodes.append(node("Concat", ["ones", "scale"], ["scales"], axis=0))
    names = {"sizes": "new" if named else "size", "scales": "scale" if named else "scales"}
    if named:
        how["axes"] = [2, 3]
    operands = [names[by]] if opset < 11 else ["region", names[by]]
    if opset >= 11 and by == "sizes":
        operands = ["region", "", names[by]]
    if how.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        missing = "none" if opset < 13 and by == "scales" else ""
        operands = [each if each in names.values() else missing for each in operands]
    kind = "Upsample" if opset < 10 else "Resize"
    nodes.append(node(kind, [data, *operands], ["y"], **how))
    made = {name for each in nodes for name in each.output}
    wanted, kept = {"y"}, []
    for each in reversed(nodes):
        if wanted & set(each.output):
            kept.insert(0, each)
            wanted |= set(each.input)
    used = wanted - made
    inputs = {
        "x": FULL,
        "lengths": [2],
        "sizes": [2],
        "factors": [2],
        "region": [4 if named else 8],
    }
    graph = helper.make_graph(
        kept,
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
            if name in used
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [onnx.numpy_helper.from_array(v, name) for name, v in CONSTANTS.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def inputs_of(
    model: onnx.ModelProto, run: tuple[Sequence[float], ...], seed: int
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    size = {value.name: value for value in model.graph.input}
    rank = 4 if "region" not in size else size["region"].type.tensor_type.shape.dim[0].dim_value
    region = random.uniform(-0.3, 1.3, rank).astype("float32")
    region[: rank // 2] *= 0.5
    if rank == 8:  # batch and channels as they are
        region[[0, 1]], region[[4, 5]] = 0, 1
    lengths, sizes, factors = (np.asarray(each, "float32") for each in run)
    given = {"lengths": lengths, "sizes": sizes, "factors": factors, "region": region}
    given["x"] = random.normal(size=FULL).astype("float32")
    return {name: value for name, value in given.items() if name in size}


def agrees(model: onnx.ModelProto, target: str = "llvm", *, peer: str = "runtime") -> None:
    """Compare with ONNX Runtime, or with onnx's own reference."""
    compiled = tvm_edge.compile(model, target)
    # onnx's reference has no length of 23 for 2.3 times 10.
    for seed, run in enumerate(RUNS[: 3 if peer == "onnx" else None]):
        if "Upsample" in {each.op_type for each in model.graph.node}:
            run = (*run[:2], (1.7, 2.3))
        inputs = inputs_of(model, run, seed)
        if peer == "runtime":
            expected = reference(model, inputs)["y"]
        else:
            (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
        found = compiled.run(inputs)["y"]
        assert found.shape == expected.shape, run
        # The weights are a few float32 roundings from those of a position in float64.
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=str(run))


COORDINATES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]


@pytest.mark.diagonals(3)
@pytest.mark.parametrize("by", ["sizes", "scales"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_coordinates(coordinates: str, mode: str, by: str) -> None:
    how = {"extrapolation_value": 9.0} if coordinates == "tf_crop_and_resize" else {}
    agrees(model_of(by, mode=mode, coordinate_transformation_mode=coordinates, **how))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("by", ["sizes", "scales"])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(nearest: str, by: str) -> None:
    agrees(model_of(by, mode="nearest", nearest_mode=nearest, named=True))


@pytest.mark.parametrize("by", ["sizes", *in_full("scales")])
def test_borders_that_are_left_out(by: str) -> None:
    agrees(model_of(by, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_antialias(by: str, mode: str) -> None:
    """Against onnx's reference: at the border ONNX Runtime leaves out what ONNX repeats."""
    agrees(model_of(by, mode=mode, antialias=1, named=True), peer="onnx")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_aspect_ratios(mode: str, policy: str) -> None:
    agrees(model_of("sizes", mode=mode, keep_aspect_ratio_policy=policy, named=True))


@pytest.mark.parametrize(
    ("opset", "by"), [(9, "scales"), (10, "scales"), (11, "scales"), (13, "sizes")]
)
def test_opsets(opset: int, by: str) -> None:
    agrees(model_of(by, opset=opset, mode="nearest", crop=opset > 9))


def test_a_picture_of_known_lengths() -> None:
    for by in ("sizes", "scales"):
        agrees(model_of(by, mode="linear", crop=False))


@pytest.mark.parametrize("scales", [(2.0, 0.5), (1.7, 0.3), (1.0, 3.0)])
def test_known_scales_of_lengths_of_the_run(scales: tuple[float, float]) -> None:
    model = model_of("scales", mode="linear")
    del model.graph.node[[n.output[0] for n in model.graph.node].index("scales")]
    del model.graph.node[[n.output[0] for n in model.graph.node].index("scale")]
    names = ("factors", "nought", "ones")
    for values in (model.graph.input, model.graph.initializer):
        for value in [each for each in values if each.name in names]:
            values.remove(value)
    factors = np.asarray([1, 1, *scales], "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(factors, "scales"))
    agrees(model)


IMPOSSIBLE = {
    "no length": ("sizes", (7, 10), (0, 5), (1, 1)),
    "a negative length": ("sizes", (7, 10), (-3, 5), (1, 1)),
    "more than any memory": ("sizes", (7, 10), (2**40, 5), (1, 1)),
    "of nothing": ("sizes", (0, 10), (4, 5), (1, 1)),
    "no scale": ("scales", (7, 10), (1, 1), (0, 1)),
    "a negative scale": ("scales", (7, 10), (1, 1), (-2, 1)),
    "a huge scale": ("scales", (7, 10), (1, 1), (1e30, 1)),
    "a scale that is no number": ("scales", (7, 10), (1, 1), (float("nan"), 1)),
    "an infinite scale": ("scales", (7, 10), (1, 1), (float("inf"), 1)),
}


@pytest.mark.parametrize("how", [{"mode": "linear"}, {"mode": "cubic", "antialias": 1}])
def test_impossible_lengths_end_the_run_alone(how: dict[str, Any]) -> None:
    for by in ("sizes", "scales"):
        model = model_of(by, named=True, **how)
        compiled = tvm_edge.compile(model, "llvm")
        for name, (kind, *run) in IMPOSSIBLE.items():
            if kind == by:
                with pytest.raises(tvm_edge.InputError):
                    compiled.run(inputs_of(model, tuple(run), 0))
                    pytest.fail(name)
        inputs = inputs_of(model, RUNS[0], 0)
        np.testing.assert_array_equal(compiled.run(inputs)["y"], compiled.run(inputs)["y"])


@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_batch_and_channels_stay_numbers(by: str) -> None:
    """The new lengths are joined to them by Concat; a convolution needs its channels."""
    model = model_of(by, mode="linear")
    model.graph.node[-1].output[0] = "resized"
    model.graph.node.append(node("Conv", ["resized", "weights"], ["y"], pads=[1] * 4))
    weights = np.random.default_rng(1).normal(size=(3, 2, 3, 3)).astype("float32") / 4
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    agrees(model)


@pytest.mark.diagonals(2)
@needs_opencl
@pytest.mark.parametrize(
    ("by", "how"),
    [
        ("sizes", {"mode": "cubic"}),
        ("scales", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
        ("scales", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("scales", {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}),
        ("sizes", {"mode": "nearest", "keep_aspect_ratio_policy": "not_larger", "named": True}),
    ],
)
def test_on_a_gpu(by: str, how: dict[str, Any]) -> None:
    agrees(model_of(by, **how), "opencl")


@needs_opencl
@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_antialias_on_a_gpu(by: str) -> None:
    agrees(model_of(by, mode="linear", antialias=1, named=True), "opencl", peer="onnx")
