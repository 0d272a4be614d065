"""Converters of element-wise operators, where TVM's are wrong or slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import tvm
from tvm import relax

from tvm_edge.ops.converter import Attributes, Converter, scalar
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = [
    "add_all",
    "bit_shift",
    "clip",
    "cosh",
    "elu",
    "equal",
    "extremum",
    "is_inf",
    "mish",
    "mod",
    "power",
    "sinh",
    "softplus",
    "thresholded_relu",
]


def add_all(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Chain adds; TVM stacks the operands into a new tensor, which no fusion takes apart."""
    return reduce(lambda a, b: bb.normalize(relax.op.add(a, b)), inputs)


def clip(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Use ``relax.clip`` for constant bounds; TVM tests them for NaN at run time."""
    bounds = [attrs.get("min"), attrs.get("max")]
    for i, bound in enumerate(inputs[1:3]):
        if bound is None:
            continue
        if not isinstance(bound, tvm.ir.GenericConst):
            return None
        bounds[i] = bound.value.numpy().item()
    dtype = str(inputs[0].ty.dtype)
    if not dtype.startswith("float") or any(b is not None and math.isnan(b) for b in bounds):
        return None
    low = -math.inf if bounds[0] is None else bounds[0]
    high = math.inf if bounds[1] is None else bounds[1]
    return bb.normalize(relax.op.clip(inputs[0], low, high))


def equal(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """Compare truth values by logic: LLVM gets a comparison of fractions for them, and fails."""
    a, b = inputs
    if str(a.ty.dtype) != "bool":
        return None
    return bb.normalize(relax.op.logical_not(relax.op.logical_xor(a, b)))


def extremum(sign: int) -> Converter:
    """Chain comparisons that keep NaN, for Max or Min; TVM drops it, and stacks the operands.

    A constant number is a bound of ``relax.clip``: one instruction, and channel blocks stay.
    """

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
    ) -> relax.Expr:
        def pair(a: relax.Expr, b: relax.Expr) -> relax.Expr:
            if not _floating(a):
                return bb.normalize((relax.op.maximum if sign > 0 else relax.op.minimum)(a, b))
            if str(a.ty.dtype) == "bfloat16":  # of which TVM cannot tell a NaN
                wide = pair(*(bb.emit(relax.op.astype(value, "float32")) for value in (a, b)))
                return bb.normalize(relax.op.astype(wide, "bfloat16"))
            for value, other in ((a, b), (b, a)):
                bound = _bound(other, value)
                if bound is not None:
                    low, high = (bound, math.inf) if sign > 0 else (-math.inf, bound)
                    return bb.normalize(relax.op.clip(value, low, high))
            wins = relax.op.greater(a, b) if sign > 0 else relax.op.less(a, b)
            # A comparison with NaN is false, which takes b; a NaN in a is asked for.
            return bb.normalize(relax.op.where(relax.op.logical_or(wins, relax.op.isnan(a)), a, b))

        return reduce(pair, inputs)

    return convert


def thresholded_relu(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Choose between x and 0; TVM multiplies by 0 or 1, which keeps NaN, and knows float32 only."""
    (x,) = inputs
    alpha = scalar(attrs.get("alpha", 1.0), x)
    return bb.normalize(relax.op.where(relax.op.greater(x, alpha), x, scalar(0.0, x)))


def elu(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convert other types than float32, which TVM's constants have."""
    (x,) = inputs
    if str(x.ty.dtype) == "float32":
        return None
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, scalar(0.0, x))), scalar(1.0, x))
    below = relax.op.multiply(scalar(attrs.get("alpha", 1.0), x), below)
    return bb.normalize(relax.op.where(relax.op.greater(x, scalar(0.0, x)), x, below))


def is_inf(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Ask for one sign only; TVM asks for both."""
    positive, negative = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    if positive and negative:
        return None
    (x,) = inputs
    if not positive and not negative:
        return bb.normalize(relax.op.zeros_like(x, "bool"))
    side = relax.op.greater if positive else relax.op.less
    return bb.normalize(relax.op.logical_and(relax.op.isinf(x), side(x, scalar(0.0, x))))


def mod(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Take the remainder with the divisor's sign; TVM's is NaN for an infinite divisor."""
    x, y = inputs
    if attrs.get("fmod", 0) or not _floating(x):
        return None
    rest = bb.emit(relax.op.mod(x, y))
    zero = scalar(0.0, x)
    crosses = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    crosses = relax.op.logical_and(relax.op.not_equal(rest, zero), crosses)
    return bb.normalize(relax.op.where(crosses, relax.op.add(rest, y), rest))


def bit_shift(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Shift; a shift by as many bits as there are, or by less than none, leaves no bit.

    That is NumPy's rule. In C and LLVM it has no value, and OpenCL takes the shift's lowest bits.
    """
    value, by = inputs
    kind = str(value.ty.dtype)
    zero, bits = scalar(0, by), scalar(tvm.DataType(kind).bits, by)
    inside = bb.emit(
        relax.op.logical_and(relax.op.less(by, bits), relax.op.greater_equal(by, zero))
    )
    by = bb.emit(relax.op.where(inside, by, zero))
    nothing = scalar(0, value)
    if attrs["direction"] in ("LEFT", b"LEFT"):
        return bb.normalize(relax.op.where(inside, relax.op.left_shift(value, by), nothing))
    if not kind.startswith("u"):  # the sign moves in
        negative = relax.op.less(value, nothing)
        nothing = bb.emit(relax.op.where(negative, scalar(-1, value), nothing))
    return bb.normalize(relax.op.where(inside, relax.op.right_shift(value, by), nothing))


def power(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """Convert powers of two types, and of integers, which TVM lacks, as ONNX Runtime does."""
    base, exponent = inputs
    kind = str(base.ty.dtype)
    if _floating(base):
        if str(exponent.ty.dtype) == kind:
            return None
        return bb.normalize(relax.op.power(base, relax.op.astype(exponent, kind)))
    power = relax.op.power(relax.op.astype(base, "float64"), relax.op.astype(exponent, "float64"))
    return bb.normalize(relax.op.astype(power, kind))


def mish(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Write ``x·tanh(ln(1 + eˣ))`` as a fraction in eˣ: 1 + eˣ loses a negative x."""
    (x,) = inputs
    # Above, the hyperbolic tangent is 1; its square must not overflow.
    most = 5.0 if str(x.ty.dtype) == "float16" else 20.0
    e = bb.emit(relax.op.exp(relax.op.minimum(x, scalar(most, x))))
    n = bb.emit(relax.op.multiply(e, relax.op.add(e, scalar(2.0, x))))
    return bb.normalize(relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, scalar(2.0, x)))))


def softplus(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    """Write ``max(x, 0) + ln(1 + e^-|x|)``; ``ln(1 + eˣ)`` overflows and loses a negative x."""
    (x,) = inputs
    one = scalar(1.0, x)
    u = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    w = bb.emit(relax.op.add(u, one))
    # ln(1 + u) to the last bit or two, from w = 1 + u rounded (Higham 2002, §1.14.1).
    ratio = relax.op.divide(u, relax.op.subtract(w, one))
    log1p = relax.op.where(relax.op.equal(w, one), u, relax.op.multiply(relax.op.log(w), ratio))
    return bb.normalize(relax.op.add(relax.op.maximum(x, scalar(0.0, x)), log1p))


def cosh(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Add exponentials: LLVM has no such intrinsic, and TVM no rule for it."""
    return bb.normalize(relax.op.add(*_half_exponentials(inputs[0])))


def sinh(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Subtract exponentials, and sum Taylor's series where that loses the digits of a small x."""
    (x,) = inputs
    square = bb.emit(relax.op.multiply(x, x))
    series = scalar(1.0, x)
    for divisor in (72.0, 42.0, 20.0, 6.0):
        term = relax.op.multiply(relax.op.multiply(square, scalar(1 / divisor, x)), series)
        series = bb.emit(relax.op.add(term, scalar(1.0, x)))
    small = relax.op.less(relax.op.abs(x), scalar(1.0, x))
    difference = relax.op.subtract(*_half_exponentials(x))
    return bb.normalize(relax.op.where(small, relax.op.multiply(x, series), difference))


def _half_exponentials(x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Return ``e^x / 2`` and ``e^-x / 2`` by e^(x - ln 2), finite as long as the result is."""
    half = scalar(math.log(2.0), x)
    up = relax.op.exp(relax.op.subtract(x, half))
    return up, relax.op.exp(relax.op.subtract(relax.op.negative(x), half))


def _bound(expr: relax.Expr, value: relax.Expr) -> float | None:
    """Return a constant number that keeps the shape of `value`, which it is broadcast to."""
    number = constant_of(expr)
    if number is None or number.size != 1 or number.ndim > value.ty.ndim:
        return None
    return float(number.item()) if np.isfinite(number.item()) else None


def _floating(value: relax.Expr) -> bool:
    return "float" in str(value.ty.dtype)
