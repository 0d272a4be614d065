"""Files that ONNX Runtime runs and ONNX's checker refuses: mended, with a warning; If branches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import reference
from tvm_edge.errors import InputError, InvalidModelError

node = helper.make_node
value = helper.make_tensor_value_info
RANDOM = np.random.default_rng(0)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model that nothing has checked."""
    initializers = [numpy_helper.from_array(v, name) for name, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agrees(model: onnx.ModelProto, inputs: dict[str, np.ndarray], **options: Any) -> None:
    expected = reference(model, inputs)
    compiled = tvm_edge.compile(model, "llvm", **options)
    names = [each.name for each in compiled.inputs]
    found = compiled.run({name: v for name, v in inputs.items() if name in names})
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_an_output_declared_with_another_rank() -> None:
    model = model_of(
        [node("Sigmoid", ["x"], ["y"], name="last")],
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, [])],
    )
    with pytest.warns(tvm_edge.errors.TvmEdgeWarning, match="declares shapes.*node name: last"):
        agrees(model, {"x": np.ones((3, 4), "float32")}, input_shapes={"x": (3, 4)})


def branch(nodes: Sequence[onnx.NodeProto], dims: Any, dtype: int, **weights: Any) -> Any:
    tensors = [numpy_helper.from_array(v, name) for name, v in weights.items()]
    result = value(nodes[-1].output[0], dtype, dims)
    return helper.make_graph(list(nodes), "branch", [], [result], tensors)


def test_a_branch_that_declares_another_rank() -> None:
    ends = [
        branch([node("Cast", ["x"], [name], to=TensorProto.INT64)], [], TensorProto.INT64)
        for name in "ab"
    ]
    model = model_of(
        [node("If", ["c"], ["y"], then_branch=ends[0], else_branch=ends[1])],
        [value("x", TensorProto.FLOAT, [2]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.INT64, None)],
    )
    with pytest.warns(tvm_edge.errors.TvmEdgeWarning, match="declares shapes"):
        agrees(model, {"x": np.float32([1.5, 3]), "c": np.array(True)})


def rates() -> onnx.ModelProto:
    """A network for each of two sample rates, as silero-vad has them; one fits the input."""

    def network(n: int) -> onnx.GraphProto:
        weight = RANDOM.random((n, 4)).astype("float32")
        product = node("MatMul", ["x", f"w{n}"], [f"o{n}"])
        return branch([product], None, TensorProto.FLOAT, **{f"w{n}": weight})

    return model_of(
        [
            node("Equal", ["sr", "k"], ["is16"]),
            node(
                "If",
                ["is16"],
                ["y"],
                name="rate",
                then_branch=network(72),
                else_branch=network(36),
            ),
        ],
        [value("x", TensorProto.FLOAT, [1, "n"]), value("sr", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        {"k": np.array(16000)},
    )


def inputs_of(rate: int) -> dict[str, np.ndarray]:
    return {"x": RANDOM.random((1, 72)).astype("float32"), "sr": np.array(rate)}


def test_a_branch_that_fits_no_input_is_refused_when_it_is_taken() -> None:
    model = rates()
    with pytest.warns(tvm_edge.errors.TvmEdgeWarning, match=r"a branch of the If 'rate'.*36"):
        compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": (1, 72)})
    inputs = inputs_of(16000)
    (found,) = compiled.run(inputs).values()
    np.testing.assert_allclose(found, reference(model, inputs)["y"], rtol=1e-5)
    with pytest.raises(InputError, match="a branch of the If 'rate'"):
        compiled.run(inputs_of(8000))
    np.testing.assert_array_equal(compiled.run(inputs)["y"], found)  # and goes on


def test_a_value_chooses_the_branch() -> None:
    given = {"input_shapes": {"x": (1, 72)}, "input_values": {"sr": 16000}}
    agrees(rates(), inputs_of(16000), **given)
    compiled = tvm_edge.compile(rates(), "llvm", **given)
    assert [each.name for each in compiled.inputs] == ["x"]
    assert [p.op_type for p in compiled.report.placements if p.device] == ["MatMul"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1}, "input_values names 'rate', which is no input"),
        ({"sr": [1, 2]}, r"shape \(2,\), and the model takes int64 of \(\)"),
        ({"x": np.zeros((1, 72))}, "float64 of the shape"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_edge.compile(rates(), "llvm", input_shapes={"x": (1, 72)}, input_values=values)


def test_both_branches_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(InvalidModelError, match="MatMul"):
        tvm_edge.compile(rates(), "llvm", input_shapes={"x": (1, 50)})


def test_one_branch_of_two_is_executed() -> None:
    """Lengths that differ, of which one is of the run; names that repeat inside."""
    then = branch(
        [
            node("NonZero", ["x"], ["places"]),
            node("Squeeze", ["places", "axis"], ["place"]),
            node("Gather", ["x", "place"], ["h"]),
        ],
        None,
        TensorProto.FLOAT,
    )
    otherwise = branch(
        [node("Neg", ["x"], ["h"]), node("Concat", ["h", "h"], ["twice"], axis=0)],
        None,
        TensorProto.FLOAT,
    )
    model = model_of(
        [
            node("Relu", ["x"], ["h"]),
            node("If", ["c"], ["some"], name="which", then_branch=then, else_branch=otherwise),
            node("Mul", ["some", "two"], ["double"]),
            node("ReduceSum", ["h"], ["sum"], keepdims=0),
        ],
        [value("x", TensorProto.FLOAT, [6]), value("c", TensorProto.BOOL, [])],
        [value("double", TensorProto.FLOAT, ["m"]), value("sum", TensorProto.FLOAT, [])],
        {"axis": np.array([0]), "two": np.float32(2)},
    )
    with pytest.warns(tvm_edge.errors.TvmEdgeWarning, match="'h' inside of the node 'which'"):
        compiled = tvm_edge.compile(model, "llvm")
    x = np.float32([1, 0, -3, 0, 5, 6])
    for chosen in (True, False):
        found = compiled.run({"x": x, "c": np.array(chosen)})
        expected = x[x != 0] * 2 if chosen else np.concatenate([-x, -x]) * 2
        np.testing.assert_array_equal(found["double"], expected)
        assert found["sum"] == 12


def test_a_resize_with_empty_operands() -> None:
    model = model_of(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "zero", "two"], ["nc"]),
            node("Shape", ["z"], ["s2"]),
            node("Slice", ["s2", "two", "four"], ["hw"]),
            node("Concat", ["nc", "hw"], ["sizes"], axis=0),
            node("Resize", ["x", "empty", "empty", "sizes"], ["y"], mode="nearest"),
        ],
        [value("x", TensorProto.FLOAT, [1, 2, 4, 4]), value("z", TensorProto.FLOAT, [1, 2, 8, 12])],
        [value("y", TensorProto.FLOAT, None)],
        {
            "empty": np.zeros(0, "float32"),
            "zero": np.array([0]),
            "two": np.array([2]),
            "four": np.array([4]),
        },
    )
    sizes = {"x": (1, 2, 4, 4), "z": (1, 2, 8, 12)}
    agrees(model, {n: RANDOM.random(shape).astype("float32") for n, shape in sizes.items()})


@pytest.mark.parametrize(
    ("coordinates", "sizes"),
    [("asymmetric", True), ("asymmetric", False), ("tf_half_pixel_for_nn", True)],
)
def test_a_resize_whose_operands_may_be_empty_but_not_left_out(
    coordinates: str, sizes: bool
) -> None:
    """Opset 11, as PyTorch, paddle2onnx and tf2onnx write it."""
    operands = ["x", "roi", "none", "sizes"] if sizes else ["x", "roi", "scales"]
    weights = {
        "none": np.zeros(0, "float32"),
        "sizes": np.array([1, 2, 9, 14]),
        "scales": np.float32([1, 1, 2, 2]),
    }
    model = model_of(
        [
            node("Constant", [], ["roi"], value=numpy_helper.from_array(weights["none"])),
            node(
                "Resize",
                operands,
                ["y"],
                coordinate_transformation_mode=coordinates,
                mode="nearest",
                nearest_mode="floor",
            ),
        ],
        [value("x", TensorProto.FLOAT, [1, 2, 6, 8])],
        [value("y", TensorProto.FLOAT, [1, 2, 9 if sizes else 12, 14 if sizes else 16])],
        {name: weights[name] for name in operands[2:]},
        opset=11,
    )
    agrees(model, {"x": RANDOM.random((1, 2, 6, 8)).astype("float32")})


def test_group_normalization_of_opset_18() -> None:
    model = model_of(
        [node("GroupNormalization", ["x", "scale", "bias"], ["y"], name="groups", num_groups=3)],
        [value("x", TensorProto.FLOAT, [2, 6, 5, 4])],
        [value("y", TensorProto.FLOAT, [2, 6, 5, 4])],
        {"scale": np.float32([1, 2, 3]), "bias": np.float32([0.5, 0, -1])},
        opset=18,
    )
    x = RANDOM.normal(size=(2, 6, 5, 4)).astype("float32")
    with pytest.warns(tvm_edge.errors.TvmEdgeWarning, match="'groups'.*opset 18"):
        (found,) = tvm_edge.compile(model, "llvm").run({"x": x}).values()
    groups = x.astype("float64").reshape(2, 3, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    scaled = normal * np.array([1, 2, 3])[:, None] + np.array([0.5, 0, -1])[:, None]
    np.testing.assert_allclose(found, scaled.reshape(x.shape), rtol=1e-5, atol=1e-5)


def test_shapes_that_the_operators_do_not_take() -> None:
    """The user's shape is to blame, not the file."""
    model = model_of(
        [
            node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["p", "", "s"], ["u"], mode="nearest"),
            node("Concat", ["u", "x"], ["y"], axis=1),
        ],
        [value("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [value("y", TensorProto.FLOAT, ["batch", 6, "height", "width"])],
        {"s": np.float32([1, 1, 2, 2])},
    )
    with pytest.raises(InputError, match=r"does not take inputs of the shapes.*Concat"):
        tvm_edge.compile(model, "llvm", input_shapes={"x": (1, 3, 33, 33)})
    compiled = tvm_edge.compile(model, "llvm")
    with pytest.raises(InputError, match=r"lengths|shapes"):
        compiled.run({"x": np.ones((1, 3, 33, 33), "float32")})
    with pytest.raises(InputError, match="gives 'batch' 2"):
        tvm_edge.compile(model, "llvm", input_shapes={"batch": 2})
    agrees(model, {"x": np.ones((1, 3, 8, 8), "float32")}, input_shapes={"x": (1, 3, 8, 8)})


@pytest.mark.parametrize(("limit", "warns"), [(np.inf, False), ([1.0, np.inf], True)])
def test_a_warning_of_infinite_weights_and_none_of_infinite_limits(limit: Any, warns: bool) -> None:
    kind = "Add" if warns else "Clip"
    operands = ["x", "limit"] if warns else ["x", "", "limit"]
    model = model_of(
        [node(kind, operands, ["y"])],
        [value("x", TensorProto.FLOAT, [3, 2])],
        [value("y", TensorProto.FLOAT, [3, 2])],
        {"limit": np.asarray(limit, "float32")},
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tvm_edge.compile(model, "llvm")
    assert any("'limit' holds NaN or infinity" in str(each.message) for each in caught) is warns
