"""Operators of lengths that only the run tells, against ONNX Runtime.

Every case filters a row of numbers first; how many are left, and with it the shape of all that
follows, is another in each run of the one compiled model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import make_model, reference

N = 24
INTS = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "three": [3],
    "minus1": [-1],
    "ten": [10],
    "far": [2**62],
    "by2": [-1, 2],
}
SCALARS = {"zero_": 0, "one_": 1, "two_": 2}

node = helper.make_node
Case = Callable[[], tuple[list[onnx.NodeProto], dict[str, int]]]


def filtered() -> list[onnx.NodeProto]:
    """Nodes: ``kept`` are the positive numbers of x, ``n`` is how many there are."""
    return [
        node("Greater", ["x", "nought"], ["mask"]),
        node("NonZero", ["mask"], ["places"]),
        node("Squeeze", ["places", "zero"], ["place"]),
        node("Gather", ["x", "place"], ["kept"], axis=0),
        node("Shape", ["kept"], ["n"]),
        node("Squeeze", ["n", "zero"], ["n_"]),
    ]


CASES: dict[str, tuple[list[onnx.NodeProto], Sequence[str], Sequence[int]]] = {
    "shape as data": (
        [
            node("Concat", ["ten", "n"], ["both"], axis=0),
            node("ReduceMin", ["both"], ["least"], keepdims=1),
            node("ReduceProd", ["both"], ["product"], keepdims=0),
            node("Max", ["n", "three"], ["most"]),
        ],
        ["least", "product", "most"],
        [TensorProto.INT64] * 3,
    ),
    "numbers of a kernel": (
        # The count is the sum of a mask: no shape tells it.
        [
            node("Cast", ["mask"], ["ones"], to=TensorProto.INT64),
            node("ReduceSum", ["ones", "zero"], ["count"], keepdims=1),
            node("Min", ["count", "ten"], ["k"]),
            node("TopK", ["kept", "k"], ["values", "indices"], axis=0),
        ],
        ["values", "indices"],
        [TensorProto.FLOAT, TensorProto.INT64],
    ),
    "smallest first": (
        [
            node("Min", ["n", "ten"], ["k"]),
            node("TopK", ["kept", "k"], ["values", "indices"], axis=0, largest=0),
        ],
        ["values", "indices"],
        [TensorProto.FLOAT, TensorProto.INT64],
    ),
    "slice": (
        [
            node("Sub", ["n", "three"], ["end"]),
            node("Slice", ["kept", "one", "end"], ["middle"]),
            node("Slice", ["x", "zero", "n"], ["first"]),
            node("Slice", ["kept", "minus1", "far"], ["last"]),
            node("Slice", ["kept", "far", "zero", "zero", "minus1"], ["back"]),
        ],
        ["middle", "first", "last", "back"],
        [TensorProto.FLOAT] * 4,
    ),
    "range": (
        [
            node("Range", ["zero_", "n_", "one_"], ["up"]),
            node("Range", ["one_", "n_", "two_"], ["odd"]),
            node("Range", ["n_", "zero_", "minus1_"], ["down"]),
        ],
        ["up", "odd", "down"],
        [TensorProto.INT64] * 3,
    ),
    "filled": (
        [
            node("Concat", ["n", "two"], ["shape"], axis=0),
            node(
                "ConstantOfShape",
                ["shape"],
                ["sevens"],
                value=helper.make_tensor("v", TensorProto.FLOAT, [1], [7.0]),
            ),
        ],
        ["sevens"],
        [TensorProto.FLOAT],
    ),
    "expand": (
        [
            node("Unsqueeze", ["kept", "zero"], ["row"]),
            node("Concat", ["n", "n"], ["square"], axis=0),
            node("Expand", ["row", "square"], ["rows"]),
            node("Expand", ["one_f", "n"], ["ones"]),
        ],
        ["rows", "ones"],
        [TensorProto.FLOAT] * 2,
    ),
    "an axis that turns out to be 1": (
        [
            node("Min", ["n", "three"], ["k"]),
            node("Slice", ["kept", "zero", "k"], ["first"]),
            node("Expand", ["first", "three"], ["wide"]),
        ],
        ["wide"],
        [TensorProto.FLOAT],
    ),
    "quotients": (
        [
            node("Div", ["ten", "n"], ["count"]),
            node("Mod", ["ten", "n"], ["rest"]),
            node("Expand", ["one_f", "count"], ["ones"]),
        ],
        ["ones", "rest"],
        [TensorProto.FLOAT, TensorProto.INT64],
    ),
    "tile": ([node("Tile", ["pair", "n"], ["pairs"])], ["pairs"], [TensorProto.FLOAT]),
    "reshape": (
        [
            node("Concat", ["kept", "kept"], ["twice"], axis=0),
            node("Reshape", ["twice", "by2"], ["pairs"]),
            node("Concat", ["two", "n"], ["target"], axis=0),
            node("Reshape", ["twice", "target"], ["rows"], allowzero=1),
        ],
        ["pairs", "rows"],
        [TensorProto.FLOAT] * 2,
    ),
    "an open length that is none of the run": (
        # Six a row, whatever n is: it is on both sides.
        [
            node("Concat", ["n", "two", "three"], ["shape"], axis=0),
            node("Unsqueeze", ["kept", "both_axes"], ["column"]),
            node("Transpose", ["column"], ["columns"], perm=[2, 0, 1]),
            node("Expand", ["columns", "shape"], ["wide"]),
            node("Concat", ["n", "minus1"], ["target"], axis=0),
            node("Reshape", ["wide", "target"], ["rows"]),
            node("Slice", ["rows", "zero", "far", "one", "two"], ["even"]),
            node("Slice", ["rows", "one", "far", "one", "two"], ["odd"]),
            node("Sub", ["even", "odd"], ["difference"]),
            node("Flatten", ["difference"], ["flat"]),
        ],
        ["rows", "flat"],
        [TensorProto.FLOAT] * 2,
    ),
    "split": (
        [
            node("Min", ["n", "three"], ["head"]),
            node("Sub", ["n", "head"], ["rest"]),
            node("Concat", ["head", "rest"], ["parts"], axis=0),
            node("Split", ["kept", "parts"], ["a", "b"], axis=0),
        ],
        ["a", "b"],
        [TensorProto.FLOAT] * 2,
    ),
    "pad": (
        [
            node("Concat", ["one", "n"], ["pads"], axis=0),
            node("Pad", ["x", "pads"], ["wide"]),
            node("Pad", ["kept", "pads", "half"], ["wider"]),
            node("Neg", ["n"], ["less"]),
            node("Concat", ["zero", "less"], ["crop"], axis=0),
            node("Pad", ["x", "crop"], ["cropped"]),
        ],
        ["wide", "wider", "cropped"],
        [TensorProto.FLOAT] * 3,
    ),
    "pad by mirror and edge": (
        [
            node("Concat", ["one", "one"], ["pads"], axis=0),
            node("Concat", ["kept", "kept"], ["twice"], axis=0),
            node("Pad", ["twice", "pads"], ["mirrored"], mode="reflect"),
            node("Pad", ["twice", "pads"], ["repeated"], mode="edge"),
        ],
        ["mirrored", "repeated"],
        [TensorProto.FLOAT] * 2,
    ),
    "suppression": (
        [
            node("Gather", ["boxes", "place"], ["some"], axis=1),
            node("Unsqueeze", ["kept", "both_axes"], ["scores"]),
            node("NonMaxSuppression", ["some", "scores", "far", "iou"], ["all"]),
            node("NonMaxSuppression", ["some", "scores", "three", "iou", "half1"], ["few"]),
        ],
        ["all", "few"],
        [TensorProto.INT64] * 2,
    ),
    "compress": (
        [
            node("Compress", ["x", "mask"], ["flat"]),
            node("Compress", ["boxes", "mask"], ["rows"], axis=1),
            node("Mul", ["flat", "flat"], ["squares"]),
            node("ReduceSum", ["squares"], ["sum"], keepdims=0),
        ],
        ["flat", "rows", "sum"],
        [TensorProto.FLOAT] * 3,
    ),
    "arithmetic on fractions": (
        [
            node("Cast", ["n"], ["real"], to=TensorProto.FLOAT),
            node("Mul", ["real", "one_half"], ["scaled"]),
            node("Floor", ["scaled"], ["floor"]),
            node("Cast", ["floor"], ["size"], to=TensorProto.INT64),
            node("Expand", ["one_f", "size"], ["ones"]),
            node("Mul", ["kept", "real"], ["product"]),
        ],
        ["ones", "product"],
        [TensorProto.FLOAT] * 2,
    ),
    "choice": (
        [
            node("Greater", ["n", "ten"], ["many"]),
            node("Where", ["many", "ten", "n"], ["count"]),
            node("Slice", ["kept", "zero", "count"], ["first"]),
            node("Not", ["many"], ["few"]),
        ],
        ["first", "few"],
        [TensorProto.FLOAT, TensorProto.BOOL],
    ),
}


ROWS = {
    "an open length that is none of the run": -1,
    "pad by mirror and edge": -1,
    "an axis that turns out to be 1": -1,
    "quotients": -1,
}
"""Without the last row, of which nothing is left: to mirror, to repeat, to divide by."""


def model_of(name: str) -> onnx.ModelProto:
    nodes, outputs, types = CASES[name]
    constants = {key: np.asarray(value, "int64") for key, value in {**INTS, **SCALARS}.items()}
    constants |= {
        "minus1_": np.asarray(-1, "int64"),
        "both_axes": np.asarray([0, 1], "int64"),
        "nought": np.asarray(0.0, "float32"),
        "half": np.asarray(0.5, "float32"),
        "half1": np.asarray([0.5], "float32"),
        "iou": np.asarray([0.3], "float32"),
        "one_half": np.asarray([0.5], "float32"),
        "one_f": np.asarray([1.0], "float32"),
        "pair": np.asarray([1.0, 2.0], "float32"),
    }
    corners = np.random.default_rng(3).random((1, N, 2)).astype("float32")
    constants["boxes"] = np.concatenate([corners, corners + 0.3], 2)
    used = {each for n in (*filtered(), *nodes) for each in n.input}
    return make_model(
        [*filtered(), *nodes],
        {"x": (N,)},
        outputs,
        {key: value for key, value in constants.items() if key in used},
        dtypes=dict(zip(outputs, types, strict=True)),
    )


def rows() -> list[np.ndarray]:
    """Rows of which many, few, one, all and none stay."""
    random = np.random.default_rng(7).normal(size=N).astype("float32")
    few = np.full(N, -1.0, "float32")
    few[[3, 11, 12]] = 0.25, 0.75, 0.5
    one = np.full(N, -1.0, "float32")
    one[5] = 0.5
    return [random, few, one, np.abs(random) + 0.1, -np.abs(random) - 0.1]


def agrees(name: str, target: str) -> None:
    model = model_of(name)
    compiled = tvm_edge.compile(model, target)
    for row in rows()[: ROWS.get(name)]:
        expected = reference(model, {"x": row})
        found = compiled.run({"x": row})
        for key, value in expected.items():
            assert found[key].shape == value.shape, key
            np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", CASES)
def test_lengths_of_the_run(name: str) -> None:
    agrees(name, "llvm")


REFUSED = {
    "a TopK of more than there are": ([node("TopK", ["kept", "k"], ["y", "z"])], 100_000),
    "a TopK of less than none": ([node("TopK", ["kept", "k"], ["y", "z"])], -3),
    "parts longer than the whole": (
        [node("Concat", ["k", "k"], ["s"], axis=0), node("Split", ["kept", "s"], ["y", "z"])],
        100_000,
    ),
    "a part of negative length": (
        [node("Concat", ["k", "n"], ["s"], axis=0), node("Split", ["kept", "s"], ["y", "z"])],
        -5,
    ),
    "a shape of other elements": ([node("Reshape", ["kept", "k"], ["y"])], 100_000),
    "a length that broadcasts to no other": ([node("Expand", ["kept", "k"], ["y"])], 7),
    "a negative length": ([node("ConstantOfShape", ["k"], ["y"])], -5),
    "more than any memory": ([node("ConstantOfShape", ["k"], ["y"])], 2**50),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lengths_that_do_not_fit_end_the_run_alone(name: str) -> None:
    """No kernel leaves its tensors, and the model goes on."""
    nodes, value = REFUSED[name]
    read = [*filtered(), node("Cast", ["count"], ["k"], to=TensorProto.INT64)]
    compiled = tvm_edge.compile(unchecked(read, nodes), "llvm")
    row = np.ones(N, "float32")
    with pytest.raises(tvm_edge.InputError):
        compiled.run({"x": row, "count": np.float32([value])})
    fits = 0 if nodes[-1].op_type == "Split" and "negative" in name else N
    if "longer" in name:
        fits = N // 2
    assert compiled.run({"x": row, "count": np.float32([fits])})["y"].size == fits


@pytest.mark.parametrize("mode", ["wrap", "edge", "reflect"])
def test_nothing_to_repeat_ends_the_run(mode: str) -> None:
    pad = [
        node("Concat", ["one", "k"], ["s"], axis=0),
        node("Pad", ["kept", "s"], ["y"], mode=mode),
    ]
    read = [*filtered(), node("Cast", ["count"], ["k"], to=TensorProto.INT64)]
    compiled = tvm_edge.compile(unchecked(read, pad, opset=19), "llvm")
    with pytest.raises(tvm_edge.InputError):
        compiled.run({"x": np.zeros(N, "float32"), "count": np.float32([2])})
    found = compiled.run({"x": np.arange(N, dtype="float32"), "count": np.float32([2])})["y"]
    expected = np.pad(np.arange(1, N, dtype="float32"), (1, 2), mode)
    np.testing.assert_array_equal(found, expected)


def test_a_quotient_by_nothing_is_nothing() -> None:
    """The host divides by lengths, and a division by 0 would end the process."""
    compiled = tvm_edge.compile(model_of("quotients"), "llvm")
    found = compiled.run({"x": np.zeros(N, "float32")})
    assert found["ones"].shape == (0,)
    assert found["rest"] == [0]


def unchecked(
    read: Sequence[onnx.NodeProto], nodes: Sequence[onnx.NodeProto], opset: int = 17
) -> onnx.ModelProto:
    """A model whose outputs have no shapes: onnx infers some that the run does not keep to."""
    constants = {name: np.asarray(INTS[name], "int64") for name in ("zero", "one")}
    constants["nought"] = np.asarray(0.0, "float32")
    used = {each for n in (*read, *nodes) for each in n.input}
    graph = helper.make_graph(
        [*read, *nodes],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [N]),
            helper.make_tensor_value_info("count", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if nodes[-1].op_type == "TopK" and name == "z" else 1, None
            )
            for name in nodes[-1].output
        ],
        [onnx.numpy_helper.from_array(v, key) for key, v in constants.items() if key in used],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@needs_opencl
@pytest.mark.parametrize("name", ["slice", "numbers of a kernel", "pad", "suppression", "range"])
def test_lengths_of_the_run_on_a_gpu(name: str) -> None:
    agrees(name, "opencl")


TWO_LENGTHS = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[24] x, float[24] z) => (float[n,m,16] y) {
        zero = Constant <value_float = 0.0> ()
        some = Greater (x, zero)
        others = Greater (z, zero)
        p = Compress <axis = 0> (x, some)
        q = Compress <axis = 0> (z, others)
        behind3 = Constant <value_ints = [1, 2, 3]> ()
        behind2 = Constant <value_ints = [1, 2]> ()
        p4 = Unsqueeze (p, behind3)
        q3 = Unsqueeze (q, behind2)
        pairs = Add (p4, q3)
        terms = Add (pairs, w)
        positive = Relu (terms)
        last = Constant <value_ints = [3]> ()
        y = ReduceSum <keepdims = 0> (positive, last)
    }"""


@needs_opencl
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_sums_along_rows_of_two_lengths(target: str) -> None:
    """A tile of sums lies in one row, whatever lengths number the rows."""
    model = onnx.parser.parse_model(TWO_LENGTHS)
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((16, 256)).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    compiled = tvm_edge.compile(model, target)
    for _ in range(3):
        inputs = {name: generator.standard_normal(24).astype("float32") for name in "xz"}
        (expected,), (ours,) = reference(model, inputs).values(), compiled.run(inputs).values()
        assert ours.shape == expected.shape
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-4)
