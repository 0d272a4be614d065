"""Functions that LLVM has no vector instructions for, in terms of those it has.

LLVM's exponential and power of a vector call the C library once for each lane: 5 ns an element,
where a polynomial takes 0.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import tvm_ffi
from tvm import ir, tirx

__all__ = ["expand_functions"]

_EXP, _ERF, _POW, _SIGMOID, _NEARBYINT = (
    ir.Op.get(f"tirx.{name}") for name in ("exp", "erf", "pow", "sigmoid", "nearbyint")
)

# exp(r) = 1 + r + r^2 (1/2 + ...) for |r| <= log(2)/2: Cephes' expf, S. L. Moshier, 1992.
_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
# log(2) in two parts: n times the first has no rounding error.
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
# Below the first 2^n underflows to zero, above the second exp(x) overflows.
_LEAST, _LARGEST = -88.0, 88.72283
_BIAS, _FRACTION = 127, 23  # of a float's exponent; bits of its fraction
# erf(x) = x + x P(x^2) up to the bound, and 1 - exp(Q(|x|)) beyond: N. Juffa, 2016
# (stackoverflow.com/questions/35148198), the highest power first. Both are right to 1 ulp.
_ERF_BOUND = 0.927734375
_ERF_NEAR = (
    -5.96761703e-4,
    4.99119423e-3,
    -2.67681349e-2,
    1.12819925e-1,
    -3.76125336e-1,
    1.28379166e-1,
)
_ERF_FAR = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)
# Powers made of square roots. Local response normalisation takes 0.75.
_QUARTERS = (0.25, 0.5, 0.75)
# In the middle of the floats of which each is a whole number: 2^23 to 2^24.
_ROUNDING, _ROUNDING_BITS = 1.5 * 2**23, 0x4B400000
_SMALL = 2**22  # what may be added to it and stays among them


def expand_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace exponentials, error functions, sigmoids, powers by quarters and roundings.

    All of single precision. The exponential is right to 2 units in the last place; results below
    2^-126 are zero. The error function is right to 1.2e-7.
    """

    def expand(call: ir.Call) -> tirx.Expr:
        known = any(call.op.same_as(op) for op in (_EXP, _ERF, _NEARBYINT, _POW, _SIGMOID))
        if not known or call.ty.dtype != "float32":
            return call
        if call.op.same_as(_NEARBYINT):
            return _rounded(call.args[0]) if _is_small(call.args[0]) else call
        if call.op.same_as(_EXP):
            return _exp(call.args[0])
        if call.op.same_as(_ERF):
            return _erf(call.args[0])
        if call.op.same_as(_SIGMOID):
            one = tirx.const(1, "float32")
            return one / (one + _exp(-call.args[0]))
        exponent = call.args[1]
        if isinstance(exponent, tirx.FloatImm) and exponent.value in _QUARTERS:
            return _root(call.args[0], exponent.value)
        return call

    def round_to_int(cast: tirx.Cast) -> tirx.Expr:
        call = cast.value
        if cast.ty.dtype != "int32" or not isinstance(call, ir.Call):
            return cast
        if not call.op.same_as(_NEARBYINT) or not _is_small(call.args[0]):
            return cast
        return _rounded_to_int(call.args[0])

    # Whole conversions first, or what they convert would be rounded to floats.
    func = tvm_ffi.structural_map(func, (tirx.Cast, round_to_int))
    return tvm_ffi.structural_map(func, (ir.Call, expand))


def _is_small(value: tirx.Expr) -> bool:
    """Return whether a number of float32 is bounded on both sides, by less than 2^22."""
    kinds = []
    while isinstance(value, tirx.Min | tirx.Max) and value.ty.dtype == "float32":
        if not isinstance(value.b, tirx.FloatImm) or abs(value.b.value) >= _SMALL:
            return False
        kinds.append(type(value))
        value = value.a
    return {tirx.Min, tirx.Max} <= set(kinds)


def _rounded(value: tirx.Expr) -> tirx.Expr:
    """A small number rounded to even: what lies below its last digit falls off a sum."""
    large = tirx.const(_ROUNDING, "float32")
    return (value + large) - large


def _rounded_to_int(value: tirx.Expr) -> tirx.Expr:
    """A small number rounded to even, in int32, whose digits are the last ones of the sum."""
    bits = tirx.reinterpret("int32", value + tirx.const(_ROUNDING, "float32"))
    return bits - tirx.const(_ROUNDING_BITS, "int32")


def _exp(x: tirx.Expr) -> tirx.Expr:
    """``2**n * exp(r)`` with ``x = n log(2) + r``; not-a-number and infinities as in C."""
    value, clamped, exponent, rest = (
        tirx.Var(name, "float32") for name in ("value", "clamped", "exponent", "rest")
    )

    def f(number: float) -> tirx.Expr:
        return tirx.const(number, "float32")

    polynomial = f(_COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        polynomial = polynomial * rest + f(coefficient)
    polynomial = polynomial * (rest * rest) + rest + f(1)
    bits = tirx.Cast("int32", exponent) + tirx.const(_BIAS, "int32")
    power = tirx.reinterpret("float32", bits << tirx.const(_FRACTION, "int32"))
    result = tirx.Select(value > f(_LARGEST), f(inf), polynomial * power)
    # TVM vectorises no ``nearbyint``.
    rounded = tirx.floor(clamped * f(1 / log(2)) + f(0.5))
    # Of two branches the second one is taken for not-a-number, which no integer stands for.
    bounded = tirx.Select(rounded < f(_BIAS), rounded, f(_BIAS))
    remainder = clamped - exponent * f(_LOG2_HIGH) - exponent * f(_LOG2_LOW)
    for var, bound in (
        (rest, remainder),
        (exponent, bounded),
        (clamped, tirx.Select(value < f(_LEAST), f(_LEAST), value)),
        (value, x),
    ):
        result = tirx.Let(var, bound, result)
    return result


def _erf(x: tirx.Expr) -> tirx.Expr:
    """Error function; of not-a-number it is that, of infinities ±1."""
    value, size, square = (tirx.Var(name, "float32") for name in ("value", "size", "square"))
    one = tirx.const(1, "float32")
    near = value + value * _horner(_ERF_NEAR, square)
    rest = one - _exp(size * _horner(_ERF_FAR, size) - size)
    zero = tirx.const(0, "float32")
    far = tirx.Select(value < zero, zero - rest, rest)
    result = tirx.Select(size > tirx.const(_ERF_BOUND, "float32"), far, near)
    for var, bound in ((size, tirx.abs(value)), (square, value * value), (value, x)):
        result = tirx.Let(var, bound, result)
    return result


def _horner(coefficients: Sequence[float], x: tirx.Expr) -> tirx.Expr:
    """Evaluate a polynomial, whose coefficients begin with the highest power."""
    value = tirx.const(coefficients[0], "float32")
    for coefficient in coefficients[1:]:
        value = value * x + tirx.const(coefficient, "float32")
    return value


def _root(x: tirx.Expr, exponent: float) -> tirx.Expr:
    """`x` to the power of a number of quarters."""
    half = tirx.Var("half", "float32")
    if exponent == 0.5:
        return tirx.sqrt(x)
    quarter = tirx.sqrt(half)
    return tirx.Let(half, tirx.sqrt(x), quarter if exponent == 0.25 else half * quarter)
