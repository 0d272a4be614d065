"""Loops of known length are written out; functions of ONNX's own are what they are made of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.frontend.single import close, single
from tests.onnx_models import make_model, random_input, reference
from tvm_edge.ops.registry import OPERATORS, Operator


def loop_model(steps: int) -> onnx.ModelProto:
    """``state = tanh(state · w) + step``, each state kept."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["bent"]),
            helper.make_node("Cast", ["step"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["bent", "number"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            value("step", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            value("goes_on", TensorProto.BOOL, []),
            value("next", TensorProto.FLOAT, [2, 3]),
            value("row", TensorProto.FLOAT, [2, 3]),
        ],
    )
    inputs = [value("x", TensorProto.FLOAT, [2, 3])]
    constants = [
        numpy_helper.from_array(random_input((3, 3), 1), "w"),
        numpy_helper.from_array(np.asarray(steps, "int64"), "steps"),
    ]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", "", "x"], ["last", "rows"], body=body)],
        "loop",
        inputs,
        [
            value("last", TensorProto.FLOAT, [2, 3]),
            value("rows", TensorProto.FLOAT, [steps, 2, 3]),
        ],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_loop_of_known_length_has_no_control_flow_left() -> None:
    model, x = loop_model(4), random_input((2, 3))
    compiled = tvm_edge.compile(model, "llvm")
    loop = next(p for p in compiled.report.placements if p.op_type == "Loop")
    assert loop.device == "" and len(compiled.report.kernels) >= 4
    ours = compiled.run({"x": x})
    for name, expected in reference(model, {"x": x}).items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6)


def test_attention_is_written_out() -> None:
    """Grouped queries, a causal mask, a cap; against ONNX Runtime."""
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["y"], is_causal=1, softcap=2.0, q_num_heads=4, kv_num_heads=2
    )
    inputs = {
        "q": random_input((1, 5, 32)),
        "k": random_input((1, 6, 16), 1),
        "v": random_input((1, 6, 16), 2),
    }
    compiled = tvm_edge.compile(single(node, inputs, opset=23), "llvm")
    assert "Softmax" in {operator.op_type for operator in compiled.report.placements}
    close(node, inputs, opset=23, rtol=1e-4, atol=1e-5)


def foreign(*names: str) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    tensors = ["x", *(f"t{i}" for i in range(len(names)))]
    graph = helper.make_graph(
        [
            helper.make_node(name, [a], [b], name=f"node{i}", domain="com.example")
            for i, (name, a, b) in enumerate(zip(names, tensors, tensors[1:], strict=False))
        ],
        "foreign",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value(tensors[-1], TensorProto.FLOAT, [2, 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_operators_of_another_domain_are_all_named() -> None:
    with pytest.raises(tvm_edge.UnsupportedOperatorError) as caught:
        tvm_edge.compile(foreign("Relu", "Twist", "Relu"), "llvm")
    message = str(caught.value)
    assert caught.value.operators == ("com.example.Relu", "com.example.Twist")
    assert all(f"node{i}" in message for i in range(3))
    assert "register('com.example.Relu', convert=…)" in message


def test_an_operator_of_another_domain_takes_a_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not asked for ONNX's operator of the same name."""
    from tvm import relax

    own = Operator(convert=lambda bb, inputs, _: bb.normalize(relax.op.negative(inputs[0])))
    monkeypatch.setitem(OPERATORS, "com.example.Relu", own)
    x = random_input((2, 3))
    ours = tvm_edge.compile(foreign("Relu"), "llvm").run({"x": x})["t0"]
    np.testing.assert_array_equal(ours, -x)


def test_a_part_without_elements_beside_others() -> None:
    """A split is split again and joined: a kernel once read what had not been written."""
    nodes = [
        helper.make_node("Split", ["x", "lengths"], ["a", "none", "b"], axis=-1),
        helper.make_node("Split", ["a"], ["left", "right"], axis=-1, num_outputs=2),
        helper.make_node("Sub", ["left", "right"], ["up"]),
        helper.make_node("Concat", ["up", "none", "b"], ["joined"], axis=-1),
        helper.make_node("Concat", ["joined", "none"], ["y"], axis=-1),
    ]
    lengths = np.asarray([6, 0, 2], "int64")
    model = make_model(nodes, {"x": (2, 3, 8)}, ["y"], {"lengths": lengths}, opset=18)
    x = random_input((2, 3, 8))
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    expected = np.concatenate([x[..., :3] - x[..., 3:6], x[..., 6:]], axis=-1)
    np.testing.assert_array_equal(ours, expected)
