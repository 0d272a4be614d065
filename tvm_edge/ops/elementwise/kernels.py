"""Kernels of element-wise operators, where TVM's lose NaN or trap.

Divisors are data: they come from a model file or from the inputs of a run. An integer division by
zero ends the process with SIGFPE. ONNX leaves it undefined, and ONNX Runtime raises an error, which
a kernel cannot do: here a division by zero is zero, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

__all__ = ["broadcast", "clip", "relu", "safe_division"]


def relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Keep NaN, as ONNX Runtime does; topi's ``max(x, 0)`` makes it 0."""
    return bb.call_te(_clipped, call.args[0], 0, None, primfunc_name_hint="relu")


def clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Keep NaN; an infinite bound costs nothing."""
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


def safe_division(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Divide integers, or take the remainder: by 0 it is 0, by -1 it does not overflow."""
    a, b = call.args
    dtype = str(call.ty.dtype)
    if "int" not in dtype or not _may_trap(b) or not all(_is_tensor(x) for x in (a, b)):
        return call.op.get_attr("FLegalize")(bb, call)
    operator = call.op.name.removeprefix("relax.")
    divide = {
        "divide": tirx.truncdiv,
        "floor_divide": tirx.floordiv,
        "mod": tirx.truncmod,
        "floor_mod": tirx.floormod,
    }[operator]
    shape = call.ty.shape.values
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def divided(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Expr) -> tirx.Expr:
            top, bottom = broadcast(x, i), broadcast(y, i)
            # No Select around the division: TVM would simplify the divisor under its condition
            # and evaluate both sides.
            divisor = tirx.Select(bottom == 0, one, bottom)
            factor = tirx.Select(bottom == 0, zero, one)
            if not dtype.startswith("uint"):
                minus = tirx.const(-1, dtype)
                divisor = tirx.Select(bottom == minus, one, divisor)
                factor = tirx.Select(bottom == minus, minus, factor)
            quotient = divide(top, divisor)
            return quotient * factor if "divide" in operator else quotient

        return te.compute(shape, element, name=operator)

    return bb.call_te(divided, a, b, primfunc_name_hint=operator)


def _is_tensor(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and value.ty.shape is not None


def _may_trap(divisor: relax.Expr) -> bool:
    if not isinstance(divisor, tvm.ir.GenericConst):
        return True
    values = divisor.value.numpy()
    return bool(((values == 0) | (values == -1)).any())


def broadcast(x: te.Tensor, indices: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the element of `x`, broadcast to a result, at `indices` of the result."""
    own = indices[len(indices) - len(x.shape) :]
    lengths = zip(x.shape, own, strict=True)
    return x(*(0 if isinstance(n, tirx.IntImm) and int(n) == 1 else i for n, i in lengths))
