"""LSTM with int8 weights, as ``onnxruntime.quantization.quantize_dynamic`` writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, num_outputs, operand
from tvm_edge.ops.onnxruntime.integer_products import dynamically_quantised
from tvm_edge.ops.onnxruntime.standard import standard_outputs
from tvm_edge.ops.recurrent import recurrent_flops
from tvm_edge.ops.recurrent_steps import Products
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__: list[str] = []

_EXACT = 1 << 24
"""Integers below are exact in float32, and so are their sums in any order."""


def _dynamic_quantize_lstm(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Convert as LSTM, with products of integers in ONNX Runtime's order of roundings.

    It quantises the sequence, and the state of each step, to uint8 by their range, multiplies in
    int32, scales, and adds the biases last. A state that is rounded the other way changes all steps
    after it by 1e-3, so that the gates are its approximations too. Of a batch that it divides
    between threads it takes the range of each thread's part; here it is the whole batch's.
    """
    of_input = _integers(inputs[1], inputs[8], operand(inputs, 9))
    of_state = _integers(inputs[2], inputs[10], operand(inputs, 11))
    products = [
        Products(
            partial(_product, *of_input[1:], side), partial(_product, *of_state[1:], side), True
        )
        for side in range(len(of_input[0]))
    ]
    weights = [
        relax.const(np.ascontiguousarray(whole.transpose(0, 2, 1)).astype("float32"), "float32")
        for whole, _, _ in (of_input, of_state)
    ]
    operands = [inputs[0], *weights, *(operand(inputs, i) for i in range(3, 8))]
    outputs = num_outputs(attrs)
    functions = {"Sigmoid": _elementwise(bb, _logistic), "Tanh": _elementwise(bb, _tanh)}
    own = {"products": products, "functions": functions}
    made = standard_outputs(bb, "LSTM", operands, {**attrs, **own}, outputs)
    return made[0] if outputs == 1 else relax.Tuple(made)


def _quotient(
    x: tirx.Expr, limit: float, above: Sequence[float], below: Sequence[float]
) -> tirx.Expr:
    """Evaluate an odd polynomial by an even one of a clipped operand, the highest powers first."""
    bound = tirx.const(limit, "float32")
    x = tirx.max(tirx.min(x, bound), -bound)
    square = x * x

    def polynomial(factors: Sequence[float]) -> tirx.Expr:
        total = tirx.const(factors[0], "float32")
        for factor in factors[1:]:
            total = square * total + tirx.const(factor, "float32")
        return total

    return x * polynomial(above) / polynomial(below)


# onnxruntime/core/mlas/lib/logistic.cpp and tanh.cpp: within 2.4e-7.
_LOGISTIC = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03,
     2.48287947061529e-01),
    (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03,
     1.16817656904453e-01, 9.93151921023180e-01),
)  # fmt: skip
_TANH = (
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
     1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip


def _logistic(x: tirx.Expr) -> tirx.Expr:
    zero, half, one = (tirx.const(value, "float32") for value in (0, 0.5, 1))
    return tirx.max(tirx.min(_quotient(x, 18.0, *_LOGISTIC) + half, one), zero)


def _tanh(x: tirx.Expr) -> tirx.Expr:
    return _quotient(x, 9.0, *_TANH)


def _elementwise(
    bb: relax.BlockBuilder, function: Callable[[tirx.Expr], tirx.Expr]
) -> Callable[[relax.Expr], relax.Expr]:
    """Make a kernel of a function of one element, the same for all tensors of a shape."""
    kernels: dict[str, tvm.ir.GlobalVar] = {}

    def call(x: relax.Expr) -> relax.Expr:
        x = bb.emit(x)
        key = str(x.ty)
        if key not in kernels:

            def gate(data: te.Tensor) -> te.Tensor:
                return te.compute(data.shape, lambda *i: function(data(*i)), name="gate")

            made = bb.call_te(gate, x, primfunc_name_hint="gate")
            kernels[key] = made.args[0]
        return bb.emit(relax.call_tir(kernels[key], [x], x.ty))

    return call


def _integers(
    weights: relax.Expr, scale: relax.Expr, zero: relax.Expr | None
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return weights ``[directions, inputs, gates]`` without their zero points, and their scales.

    Scale and zero point are ``[directions]`` or ``[directions, gates]``. The third result is
    whether sums of products with uint8 are integers that float32 holds.
    """
    values, factors = constant_of(weights), constant_of(scale)
    starts = None if zero is None else constant_of(zero)
    if values is None or factors is None or (zero is not None and starts is None):
        raise NotImplementedError("DynamicQuantizeLSTM with weights that are not constant")
    whole = values.astype("int32")
    if starts is not None:
        whole = whole - starts.astype("int32").reshape(len(values), 1, -1)
    largest = 255 * np.abs(whole.astype("int64")).sum(axis=1).max(initial=0)
    return whole, factors.reshape(len(values), -1).astype("float32"), bool(largest < _EXACT)


def _product(
    factors: np.ndarray,
    exact: bool,
    side: int,
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weights: relax.Expr,
) -> relax.Expr:
    """Quantise rows by their range, multiply by integers, scale by the product of both scales."""
    numbers, scale, zero = dynamically_quantised(bb, x)
    kind = "float32" if exact else "int32"
    whole, start = (bb.emit(relax.op.astype(each, kind)) for each in (numbers, zero))
    whole = bb.emit(relax.op.subtract(whole, start))
    if not exact:
        known = constant_of(weights)
        assert known is not None
        weights = relax.const(known.astype("int32"), "int32")
    total = bb.emit(relax.op.matmul(whole, weights))
    if not exact:
        total = bb.emit(relax.op.astype(total, "float32"))
    of_weights = factors[side] if factors.shape[1] > 1 else factors[side, 0]
    both = bb.emit(relax.op.multiply(scale, relax.const(of_weights, "float32")))
    return bb.emit(relax.op.multiply(total, both))


register(
    "com.microsoft.DynamicQuantizeLSTM",
    convert=_dynamic_quantize_lstm,
    flops=recurrent_flops,
)
