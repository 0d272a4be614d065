"""Which operators a report says that an operator reads."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from tvm import relax

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.frontend.onnx_edges import sources


def edges(report: tvm_edge.CompileReport) -> dict[str, list[str]]:
    return {o.name: [report.operators[i].name for i in o.inputs] for o in report.operators}


def test_of_onnx_nodes() -> None:
    """Each once, in the order read; neither inputs nor weights nor what is evaluated now."""
    nodes = [
        helper.make_node("Exp", ["w"], ["e"], name="constant"),
        helper.make_node("Split", ["x"], ["a", "b"], name="split", axis=1, num_outputs=2),
        helper.make_node("Mul", ["b", "e"], ["m"], name="scale"),
        helper.make_node("Add", ["m", "a"], ["s"], name="sum"),
        helper.make_node("Mul", ["s", "s"], ["y"], name="square"),
    ]
    model = make_model(nodes, {"x": (2, 4)}, ["y"], {"w": np.ones((2, 2), "float32")}, opset=18)
    assert edges(tvm_edge.analyze(model, "llvm")) == {
        "split": [],
        "scale": ["split"],
        "sum": ["scale", "split"],
        "square": ["sum"],
        "constant": [],
    }


def test_what_a_branch_reads_its_node_reads() -> None:
    value = helper.make_tensor_value_info
    branch = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["n"], name="inner")],
        "branch",
        [],
        [value("n", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch),
    ]
    condition = np.array(True)
    model = make_model(nodes, {"x": (2,)}, ["y"], {"c": condition})
    assert sources(model) == [(), (0,)]


def test_of_relax_calls() -> None:
    """Through tuples, their fields, and other names."""
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        parts = builder.emit(relax.op.split(x, 2, axis=1), "parts")
        left = builder.emit(relax.TupleGetItem(parts, 0), "left")
        up = builder.emit(relax.op.exp(left), "up")
        both = builder.emit(relax.Tuple([up, left]), "both")
        builder.emit_func_output(builder.emit(relax.op.concat(both, axis=1), "joined"))
    assert edges(tvm_edge.analyze(builder.get(), "llvm")) == {
        "parts": [],
        "up": ["parts"],
        "joined": ["up", "parts"],
    }
