"""Sequences and optionals as inputs and outputs, against ONNX's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tvm_edge import InputError, UnsupportedOperatorError, onnx_backend

FLOAT = TensorProto.FLOAT
RANDOM = np.random.default_rng(5)


def tensor(name: str, dtype: int = FLOAT, shape: Any = (None, None)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def sequence(name: str, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, dtype, None)


def optional(name: str) -> onnx.ValueInfoProto:
    inner = helper.make_tensor_type_proto(FLOAT, [None])
    return helper.make_value_info(name, helper.make_optional_type_proto(inner))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "sequences", list(inputs), list(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def pictures(*sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [RANDOM.standard_normal(size).astype("float32") for size in sizes]


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def check(model: onnx.ModelProto, inputs: dict[str, Any], device: str = "CPU") -> None:
    found = onnx_backend.prepare(model, device).run(inputs)
    same(list(found), ReferenceEvaluator(model).run(None, inputs))


def number(name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value, "int64"))
    )


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_a_sequence_in_a_sequence_out(device: str) -> None:
    """Two are put in, one is taken out, and the rest is joined."""
    if not onnx_backend.supports_device(device):
        pytest.skip(f"no {device} device on this machine")
    nodes = [
        helper.make_node("Relu", ["y"], ["r"]),
        number("first", 0),
        number("last", -1),
        helper.make_node("SequenceInsert", ["x", "r", "first"], ["more"]),
        helper.make_node("SequenceInsert", ["more", "y"], ["most"]),
        helper.make_node("SequenceErase", ["most", "last"], ["z"]),
        helper.make_node("ConcatFromSequence", ["z"], ["joined"], axis=1),
        helper.make_node("SequenceAt", ["z", "last"], ["at"]),
        helper.make_node("SequenceLength", ["z"], ["length"]),
    ]
    outputs = [
        sequence("z"),
        tensor("joined"),
        tensor("at"),
        tensor("length", TensorProto.INT64, []),
    ]
    model = model_of(nodes, [sequence("x"), tensor("y")], outputs)
    given = {"x": pictures((3, 5), (3, 2)), "y": pictures((3, 7))[0]}
    check(model, given, device)


def test_one_model_of_sequences_of_several_lengths() -> None:
    """It is compiled for each, and a length that was met before is not mixed up with another."""
    body = helper.make_graph(
        [helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Shape", ["a"], ["s"])],
        "body",
        [tensor("a"), tensor("b")],
        [tensor("p"), tensor("s", TensorProto.INT64, [2])],
    )
    node = helper.make_node("SequenceMap", ["x", "y"], ["p", "s"], body=body)
    outputs = [sequence("p"), sequence("s", TensorProto.INT64)]
    model = model_of([node], [sequence("x"), tensor("y")], outputs)
    prepared = onnx_backend.prepare(model)
    assert prepared.kind == "specialised"
    for sizes in ([(2, 3)], [(2, 3), (4, 3), (1, 3)], [(5, 1)], [(2, 3)]):
        given = {"x": pictures(*sizes), "y": pictures((1, 3))[0]}
        same(list(prepared.run(given)), ReferenceEvaluator(model).run(None, given))


@pytest.mark.parametrize("split", [None, 3, [1, 4, 2]], ids=["ones", "threes", "given"])
@pytest.mark.parametrize("opset", [11, 18])
def test_split_to_sequence(split: Any, opset: int) -> None:
    names = ["h"] if split is None else ["h", "split"]
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        *([] if split is None else [number("split", split)]),
        helper.make_node("SplitToSequence", names, ["y"], axis=-1, keepdims=0),
    ]
    model = model_of(nodes, [tensor("x", FLOAT, [2, 7])], [sequence("y")], opset)
    check(model, {"x": pictures((2, 7))[0]})


@pytest.mark.parametrize("value", [None, pictures((5,))[0]], ids=["none", "one"])
def test_an_optional_that_a_branch_asks_for(value: np.ndarray | None) -> None:
    """The branch that is not taken would have nothing to read."""
    taken = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["x"], ["t"])],
        "then",
        [],
        [tensor("t", FLOAT, [5])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["e"])], "else", [], [tensor("e", FLOAT, [5])]
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["x"], ["has"]),
        helper.make_node("If", ["has"], ["chosen"], then_branch=taken, else_branch=other),
        helper.make_node("Exp", ["chosen"], ["z"]),
    ]
    given = {"x": value, "y": pictures((5,))[0]}
    model = model_of(nodes, [optional("x"), tensor("y", FLOAT, [5])], [tensor("z", FLOAT, [5])])
    (found,) = onnx_backend.run_model(model, given)
    expected = np.exp(given["y"] if value is None else value)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_branch_that_stays_in_a_body() -> None:
    """An If of the run in a body that is written out for each element; names inside repeat."""

    def branch(operator: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node(operator, ["a"], ["constant"]),
            helper.make_node("Add", ["constant", "y"], ["sum"]),
        ]
        return helper.make_graph(nodes, operator, [], [tensor("sum", FLOAT, [3])])

    body = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["a"], ["total"], keepdims=0),
            helper.make_node("Greater", ["total", "zero"], ["positive"]),
            helper.make_node(
                "If",
                ["positive"],
                ["chosen"],
                then_branch=branch("Exp"),
                else_branch=branch("Neg"),
            ),
        ],
        "body",
        [tensor("a", FLOAT, [3])],
        [tensor("chosen", FLOAT, [3])],
    )
    zero = onnx.numpy_helper.from_array(np.asarray(0.0, "float32"))
    nodes = [
        helper.make_node("Constant", [], ["zero"], value=zero),
        helper.make_node("SequenceLength", ["x"], ["count"]),
        helper.make_node("SequenceMap", ["x"], ["z"], body=body),
    ]
    outputs = [sequence("z"), tensor("count", TensorProto.INT64, [])]
    model = model_of(nodes, [sequence("x"), tensor("y", FLOAT, [3])], outputs)
    given = {"x": [np.full(3, value, "float32") for value in (1, -1, 2)], "y": pictures((3,))[0]}
    found, count = onnx_backend.run_model(model, given)
    ways = (np.exp, np.negative, np.exp)
    same(found, [way(x) + given["y"] for way, x in zip(ways, given["x"], strict=True)])
    assert count == 3


def test_a_loop_that_collects() -> None:
    """Its number of steps is an input; rows that grow are a sequence, others are stacked."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Add", ["x", "f"], ["row"]),
            helper.make_node("SequenceInsert", ["s", "row"], ["t"]),
        ],
        "body",
        [tensor("i", TensorProto.INT64, []), tensor("on", TensorProto.BOOL, []), sequence("s")],
        [tensor("still", TensorProto.BOOL, []), sequence("t"), tensor("row", FLOAT, [4])],
    )
    node = helper.make_node("Loop", ["n", "", "s0"], ["z", "rows"], body=body)
    inputs = [tensor("n", TensorProto.INT64, []), tensor("x", FLOAT, [4]), sequence("s0")]
    model = model_of([node], inputs, [sequence("z"), tensor("rows")])
    x = pictures((4,))[0]
    for steps in (1, 3):
        given = {"n": np.asarray(steps, "int64"), "x": x, "s0": pictures((2,))}
        rows = [x + i for i in range(steps)]
        collected, stacked = onnx_backend.run_model(model, given)
        same(list(collected), [*given["s0"], *rows])
        same(stacked, np.stack(rows))


def test_what_depends_on_data_is_refused() -> None:
    nodes = [
        helper.make_node("ArgMax", ["y"], ["at"], axis=0, keepdims=0),
        helper.make_node("SequenceAt", ["x", "at"], ["z"]),
    ]
    model = model_of(nodes, [sequence("x"), tensor("y", FLOAT, [2])], [tensor("z", FLOAT, [None])])
    given = {"x": pictures((3,), (4,)), "y": pictures((2,))[0]}
    with pytest.raises(UnsupportedOperatorError, match="calculated from data"):
        onnx_backend.run_model(model, given)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (pictures((3,))[0], "pass a list of arrays"),
        ([[1.0, 2.0]], "pass NumPy arrays"),
        ([np.zeros(3)], r"astype\('float32'\)"),
        (pictures((3,)), "the position 1"),
    ],
)
def test_inputs_that_do_not_fit(value: Any, what: str) -> None:
    nodes = [number("second", 1), helper.make_node("SequenceAt", ["x", "second"], ["z"])]
    model = model_of(nodes, [sequence("x")], [tensor("z", FLOAT, [None])])
    with pytest.raises(InputError, match=what):
        onnx_backend.run_model(model, {"x": value})
