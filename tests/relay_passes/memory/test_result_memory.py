"""Results of a model on the CPU are allocated by the runtime, maybe in the caller's memory."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper
from tvm import relax

from tests.compiler.steps import lowered
from tests.onnx_models import conv_relu, make_model
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.runtime.entry import RESULT


def places(model: onnx.ModelProto, target: str = "llvm") -> list[int]:
    """Places among the results that the runtime is asked to allocate, in order."""
    main = lowered(model, target).module["main"]
    asked = (binding.value for binding in bindings_of(main))
    return [
        int(value.args[0].value)
        for value in asked
        if isinstance(value, relax.Call)
        and isinstance(value.op, relax.ExternFunc)
        and value.op.global_symbol == RESULT
    ]


def steps(*outputs: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Softmax", ["x"], ["shares"]),
        helper.make_node("Relu", ["shares"], ["positive"]),
        helper.make_node("Identity", ["shares"], ["again"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
    ]
    kinds = {"places": TensorProto.INT64}
    return make_model(nodes, {"x": (4, 16)}, outputs, dtypes=kinds)


@pytest.mark.parametrize(
    "outputs, expected",
    [
        (("shares",), [0]),
        (("positive", "shares"), [1, 0]),  # in the order of the kernels
        (("shares", "again", "positive"), [0, 2]),  # one tensor has one memory
        (("same", "shares"), [1]),  # an input is nobody's to allocate
    ],
)
def test_results_that_main_allocates(outputs: tuple[str, ...], expected: list[int]) -> None:
    assert places(steps(*outputs)) == expected


def test_a_result_whose_size_a_kernel_finds() -> None:
    assert places(steps("places", "shares")) == [1, 0]


def test_gpus_and_several_devices_have_their_own(on_opencl: None) -> None:
    assert places(conv_relu(), "opencl") == []
