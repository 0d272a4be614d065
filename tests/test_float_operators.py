"""Quantised models as references: in float, whatever kernels of integers the CPU has."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.float_operators import in_float
from tests.frontend.single import single
from tests.onnx_models import conv_relu, reference
from tests.quantized_models import quantized


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_no_operator_is_left_to_integer_kernels(activations: str) -> None:
    model = quantized(conv_relu(), form="QOperator", activations=activations)
    assert {"QLinearConv", "QLinearGlobalAveragePool"} <= {n.op_type for n in model.graph.node}
    kinds = {node.op_type for node in in_float(model).graph.node}
    assert kinds == {"QuantizeLinear", "DequantizeLinear", "Conv", "Mul", "GlobalAveragePool"}


def test_products_that_saturate_in_16_bits_do_not() -> None:
    """Pairs of 255 * 127, which AVX2 alone adds to 32767."""
    a, b = np.full((2, 64), 255, "uint8"), np.full((64, 8), 127, "int8")
    zero = np.asarray(3, "uint8")
    node = helper.make_node("MatMulInteger", ["a", "b", "zero"], ["y"])
    model = single(node, {"a": a}, {"b": b, "zero": zero}, outputs={"y": TensorProto.INT32})
    (found,) = reference(model, {"a": a}).values()
    assert found.dtype == np.int32 and (found == 64 * 252 * 127).all()
    assert "MatMulInteger" not in {node.op_type for node in in_float(model).graph.node}


def test_a_float_model_is_left_as_it_is() -> None:
    assert in_float(conv_relu()) == conv_relu()
