"""How operators become kernels, where TVM's own way is not ours."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax import transform

from tvm_edge.ops import DEQUANTIZE, QUANTIZE, QUANTIZED_ADD
from tvm_edge.relay_passes.lower.in_bounds import bounded_gather, clipped_take, safe_division
from tvm_edge.relay_passes.lower.lower_quantize import (
    lower_dequantize,
    lower_quantize,
    lower_quantized_add,
)

__all__ = ["legalize_ops"]


def legalize_ops() -> tvm.transform.Pass:
    """TVM's ``LegalizeOps`` with our kernels for some operators."""
    return transform.LegalizeOps(
        {
            "relax.nn.relu": _relu,
            "relax.clip": _clip,
            "relax.take": clipped_take,
            "relax.gather_elements": bounded_gather,
            "relax.gather_nd": bounded_gather,
            "relax.divide": safe_division,
            "relax.floor_divide": safe_division,
            "relax.mod": safe_division,
            "relax.floor_mod": safe_division,
            DEQUANTIZE: lower_dequantize,
            QUANTIZE: lower_quantize,
            QUANTIZED_ADD: lower_quantized_add,
        }
    )


def _relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """NaN stays NaN, as in ONNX Runtime; topi's ``max(x, 0)`` makes it 0."""
    return bb.call_te(_clipped, call.args[0], 0, None, primfunc_name_hint="relu")


def _clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """NaN stays NaN; an infinite bound costs nothing."""
    low, high = (float(arg.value) for arg in call.args[1:3])
    bounds: list[Any] = [None if abs(b) == float("inf") else b for b in (low, high)]
    return bb.call_te(_clipped, call.args[0], *bounds, primfunc_name_hint="clip")


def _clipped(x: te.Tensor, low: float | None, high: float | None) -> te.Tensor:
    def element(*i: tirx.Expr) -> tirx.Expr:
        value = x(*i)
        # A comparison with NaN is false: the form that then takes the value. On x86 this is one
        # maxps or minps.
        # The upper bound last: with the bounds crossed, ONNX wants it everywhere.
        if low is not None:
            bound = tirx.const(low, x.dtype)
            value = tirx.Select(value < bound, bound, value)
        if high is not None:
            bound = tirx.const(high, x.dtype)
            value = tirx.Select(value > bound, bound, value)
        return value

    return te.compute(x.shape, element, name="clipped")
