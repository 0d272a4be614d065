"""LSTM with int8 weights, as ``onnxruntime.quantization.quantize_dynamic`` writes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, num_outputs, operand
from tvm_edge.ops.onnxruntime.integer_products import dynamically_quantised
from tvm_edge.ops.onnxruntime.standard import standard_outputs
from tvm_edge.ops.recurrent import recurrent_flops
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__: list[str] = []


def _dynamic_quantize_lstm(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Convert as LSTM, whose operands of products are rounded as ONNX Runtime rounds them.

    It quantises the sequence, and the state of each step, to uint8 by their range. Products of what
    is quantised are added in float32 here. Of a batch that it divides between threads it takes the
    range of each thread's part; here it is the whole batch's.
    """
    weights = [
        _dequantised(inputs[1], inputs[8], operand(inputs, 9)),
        _dequantised(inputs[2], inputs[10], operand(inputs, 11)),
    ]
    operands = [inputs[0], *weights, *(operand(inputs, i) for i in range(3, 8))]
    outputs = num_outputs(attrs)
    made = standard_outputs(bb, "LSTM", operands, {**attrs, "factor": _rounded}, outputs)
    return made[0] if outputs == 1 else relax.Tuple(made)


def _rounded(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """Quantise to uint8 by the range of a tensor, and back."""
    numbers, scale, zero = dynamically_quantised(bb, value)
    whole, start = (bb.emit(relax.op.astype(each, "float32")) for each in (numbers, zero))
    return bb.emit(relax.op.multiply(relax.op.subtract(whole, start), scale))


def _dequantised(weights: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """Dequantise and transpose ``[directions, inputs, gates]`` to LSTM's ``[…, gates, inputs]``.

    Scale and zero point are ``[directions]`` or ``[directions, gates]``.
    """
    values, factors = constant_of(weights), constant_of(scale)
    starts = None if zero is None else constant_of(zero)
    if values is None or factors is None or (zero is not None and starts is None):
        raise NotImplementedError("DynamicQuantizeLSTM with weights that are not constant")

    def along(value: np.ndarray) -> np.ndarray:
        return value.reshape(len(values), 1, -1)

    whole = values.astype("int32")
    if starts is not None:
        whole = whole - along(starts.astype("int32"))
    real = whole.astype("float32") * along(factors)
    return relax.const(np.ascontiguousarray(real.transpose(0, 2, 1)), "float32")


register(
    "com.microsoft.DynamicQuantizeLSTM",
    convert=_dynamic_quantize_lstm,
    flops=recurrent_flops,
)
