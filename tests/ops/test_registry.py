"""Facts of operators: declared once, found by name, and enough for an operator of one's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm import relax

import tvm_edge
from tests.runtime.support import run_child
from tvm_edge.frontend.onnx_costs import node_costs
from tvm_edge.ops.flops import elementwise, per_element
from tvm_edge.ops.registry import OPERATORS, PERFORMS, Operator, find, of_call, register

RELAX_FACTS = ("infer_type", "lower", "legalize", "float16", "blocks")
ONNX_FACTS = ("convert", "settings", "forming", "stored_types")


def test_facts_are_of_relax_or_of_onnx() -> None:
    """A converter under Relax's name, or a kernel under ONNX's, would never be asked for."""
    for name, operator in OPERATORS.items():
        of_relax = name.startswith(("relax.", "tvm_edge."))
        wrong = ONNX_FACTS if of_relax else RELAX_FACTS
        assert not [fact for fact in wrong if getattr(operator, fact)], name


def test_names_of_onnx_are_names() -> None:
    known = {
        f"{schema.domain}.{schema.name}".removeprefix(".")
        for schema in onnx.defs.get_all_schemas_with_history()
    }
    foreign = "com.microsoft."
    own = [name for name in OPERATORS if not name.startswith(("relax.", "tvm_edge.", foreign))]
    assert [name for name in own if name not in known] == []


def test_composite_operators_have_kernels() -> None:
    for name, operator in OPERATORS.items():
        if name.startswith("tvm_edge."):
            assert operator.infer_type is not None, name
        # The state of a loop is no kernel's: OutlineLoops takes it out.
        if name.startswith("tvm_edge.") and not name.startswith("tvm_edge.loop_"):
            assert (operator.lower is None) != (operator.legalize is None), name


def test_a_fact_that_is_not_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "com.example.Unit", Operator())
    register("com.example.Unit", flops=elementwise, forming=(1,))
    register("com.example.Unit", gpu=PERFORMS)
    assert find("com.example.Unit") == Operator(flops=elementwise, forming=(1,), gpu=PERFORMS)
    assert find("com.example.Other") == Operator()


def test_only_calls_of_operators_have_facts() -> None:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    assert of_call(relax.op.exp(x)) is find("relax.exp")
    for other in (x, None, relax.Tuple([x]), relax.Call(relax.ExternFunc("f"), [x])):
        assert of_call(other) == Operator()


def test_an_operator_of_ones_own_is_converted_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "com.example.Unit", Operator())

    def unit(bb: relax.BlockBuilder, inputs: list[relax.Expr], attrs: object) -> relax.Expr:
        return bb.normalize(relax.op.negative(inputs[0]))

    register("com.example.Unit", convert=unit, flops=per_element(3))
    node = helper.make_node("Unit", ["x"], ["y"], domain="com.example")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert [cost.flops for cost in node_costs(model)] == [3 * 16]
    data = np.arange(16, dtype="float32").reshape(2, 8)
    found = tvm_edge.compile(model, "llvm").run({"x": data})["y"]
    np.testing.assert_array_equal(found, -data)


def test_relax_models_do_without_onnx() -> None:
    """Converters import it when they are called."""
    code = """
import sys
sys.modules["onnx"] = None
from tvm import relax
import tvm_edge
from tvm_edge import ops
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((8,), "float32"))
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(ops.scan(builder.emit(relax.op.exp(x)))))
tvm_edge.compile(builder.get(), "llvm")
assert not [name for name in sys.modules if name.startswith("tvm.relax.frontend.onnx")]
"""
    done = run_child(["-c", code])
    assert done.returncode == 0, done.stderr[-2000:]
