"""Functions that LLVM has no vector instructions for, in terms of those it has.

LLVM calls the C library for an exponential once for each lane of a vector: 5 ns an element, where a
polynomial takes 0.1. All kernels of a CPU come by here, whatever made them: those that a rule
schedules, tuned ones, and those that are written loop by loop, such as recurrent layers.

=========== ================ ======================================================
function    error            apart from that
=========== ================ ======================================================
exp         1 ulp            results below 2^-125 may be zero
log         1 ulp            numbers below 2^-126 count as zero
tanh        2 ulp
sigmoid     2 ulp            results below 2^-126 may be zero
erf         1.1 ulp          2e-6 in kernels whose results are all of 16 bits
=========== ================ ======================================================

Softplus, made of these, is right to 3 ulp and Mish to 5; GELU to 2 ulp of its argument.

Of float32; an ulp is the distance of two neighbouring numbers at the true value. Infinities and
not-a-number give what the C library gives. float64 stays with the C library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, log, nan

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.float16 import is_half

__all__ = ["ExpandFunctions", "expand_functions"]

# exp(r) = 1 + r + r^2 (1/2 + ...) for |r| <= log(2)/2; of exp(r) - 1 the error is 1.8e-8.
_EXP = (
    1.388251665e-3,
    8.366547525e-3,
    4.166720062e-2,
    1.666654348e-1,
    4.999999702e-1,
)
# log(2) in two parts: n times the first has no rounding error.
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
# From n = -126, where 2^(n - 1) is zero, to n = 128, where twice that is infinite.
_LEAST, _LARGEST = -87.33654, 89.0
_EXP_IS_0 = -88.0  # which has an n of -127
_BIAS, _FRACTION = 127, 23  # of a float's exponent; bits of its fraction
# log(1 + f) = f - f^2/2 + f^3 (1/3 - ...) for 1 + f from sqrt(1/2) to sqrt(2): Cephes' logf.
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SQRT_HALF_BITS = 0x3F3504F3
_SIGN = -(2**31)
_TANH_IS_1 = 9.02  # from here on, rounded
# erf(x) = x + x P(x^2) up to the bound, and 1 - exp(Q(|x|)) beyond: N. Juffa, 2016
# (stackoverflow.com/questions/35148198), the highest power first.
_ERF_BOUND, _ERF_IS_1 = 0.927734375, 4.0
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
# erf(x) = x P(2 (x / bound)^2 - 1), and 1 from the bound on, for results that are rounded to 11
# bits or fewer: an error of 1.6e-6, relative to small results 1e-5, by half of the operations.
_ERF_ROUNDED_BOUND = 3.5
_ERF_ROUNDED = (
    -3.279493446e-3,
    8.651242590e-3,
    -9.008053909e-3,
    1.265067794e-2,
    -2.842002763e-2,
    4.714017602e-2,
    -6.540123595e-2,
    8.794094203e-2,
    -1.145136188e-1,
    1.467865518e-1,
    -2.007053123e-1,
    4.038725230e-1,
)
# Powers made of square roots. Local response normalisation takes 0.75.
_QUARTERS = (0.25, 0.5, 0.75)
# In the middle of the floats of which each is a whole number: 2^23 to 2^24.
_ROUNDING, _ROUNDING_BITS = 1.5 * 2**23, 0x4B400000
_SMALL = 2**22  # what may be added to it and stays among them


@tvm.transform.module_pass(opt_level=0, name="ExpandFunctions")
class ExpandFunctions:
    """Apply :func:`expand_functions` to the kernels of CPUs."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _is_on_cpu(func):
                updated.update_func(gvar, expand_functions(func))
        return updated


def _is_on_cpu(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target") or tvm.target.Target.current()
    return target is not None and target.kind.name == "llvm"


def expand_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace exponentials, logarithms, hyperbolic tangents, error functions and sigmoids.

    Roundings of small numbers and powers by quarters, too; all of single precision.
    """
    rounds = _stores_halves(func)

    def expand(call: ir.Call) -> tirx.Expr:
        name = getattr(call.op, "name", "")
        make = _ROUNDED.get(name) if rounds else None
        make = make or _FUNCTIONS.get(name)
        if make is None or call.ty.dtype != "float32":
            return call
        return make(call)

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


_NEARBYINT = ir.Op.get("tirx.nearbyint")


def _is_small(value: tirx.Expr) -> bool:
    """Return whether a number of float32 is bounded on both sides, by less than 2^22."""
    kinds = []
    while isinstance(value, tirx.Min | tirx.Max) and value.ty.dtype == "float32":
        if not isinstance(value.b, tirx.FloatImm) or abs(value.b.value) >= _SMALL:
            return False
        kinds.append(type(value))
        value = value.a
    return {tirx.Min, tirx.Max} <= set(kinds)


def _rounded(call: ir.Call) -> tirx.Expr:
    """A small number rounded to even: what lies below its last digit falls off a sum.

    TVM would simplify ``(x + large) - large`` to x, but for the bits between.
    """
    value, large = call.args[0], _float(_ROUNDING)
    return _number(_bits(value + large)) - large if _is_small(value) else call


def _rounded_to_int(value: tirx.Expr) -> tirx.Expr:
    """A small number rounded to even, in int32, whose digits are the last ones of the sum."""
    return _bits(value + _float(_ROUNDING)) - _int(_ROUNDING_BITS)


def _power(call: ir.Call) -> tirx.Expr:
    """A power of a number of quarters by square roots."""
    x, exponent = call.args
    if not isinstance(exponent, tirx.FloatImm) or exponent.value not in _QUARTERS:
        return call
    half = tirx.Var("half", "float32")
    if exponent.value == 0.5:
        return tirx.sqrt(x)
    quarter = tirx.sqrt(half)
    return tirx.Let(half, tirx.sqrt(x), quarter if exponent.value == 0.25 else half * quarter)


# ----------------------------------------------------------------------------- the exponential


class _Reduced:
    """``x = n log(2) + r`` with a whole n and ``|r| <= log(2) / 2``, of a variable x.

    Attributes
    ----------
    rest : Var
        r.
    more : Expr
        ``exp(r) - 1 - r``.
    power : Expr
        ``2**n`` where n is from -127, which gives zero, to 127; with a `bias` one less, of n + 1.
    """

    def __init__(self, x: tirx.Var, bias: int = _BIAS) -> None:
        # n stands in the last bits of the sum; with the bias of exponents it is an exponent.
        self._x, self._sum, self._biased = x, tirx.Var("sum", "float32"), _float(_ROUNDING + bias)
        self._n, self.rest = tirx.Var("n", "float32"), tirx.Var("rest", "float32")
        self.more = _horner(_EXP, self.rest) * (self.rest * self.rest)
        self.power = _number(_bits(self._sum) << _int(_FRACTION))

    def exponential(self, scale: float = 1) -> tirx.Expr:
        """Return `scale`, a power of two, times ``exp(r)``."""
        return _horner([scale * each for each in (*_EXP, 1, 1)], self.rest)

    def where(self, result: tirx.Expr) -> tirx.Expr:
        """Bind the variables in an expression of them."""
        rest = self._x - self._n * _float(_LOG2_HIGH) - self._n * _float(_LOG2_LOW)
        result = tirx.Let(self.rest, rest, result)
        result = tirx.Let(self._n, self._sum - self._biased, result)
        return tirx.Let(self._sum, self._x * _float(1 / log(2)) + self._biased, result)


def _exp(x: tirx.Expr) -> tirx.Expr:
    """``2 exp(r)`` times ``2**(n - 1)``: 2^128 is no float, but 2^128 times a number below 1 is."""
    value = tirx.Var("value", "float32")
    reduced = _Reduced(value, _BIAS - 1)
    result = reduced.where(reduced.exponential(2) * reduced.power)
    return tirx.Let(value, _at_most(_at_least(x, _LEAST), _LARGEST), result)


def _sigmoid(x: tirx.Expr) -> tirx.Expr:
    """``1 - y`` with ``y = e / (1 + e)`` and ``e = exp(-|x|)``, of a negative x ``e (1 - y)``."""
    value, less, e, scale = (tirx.Var(name, "float32") for name in ("value", "less", "e", "scale"))
    reduced = _Reduced(less)
    result = scale - scale * (e / (_float(1) + e))
    result = tirx.Let(scale, tirx.Select(value < _float(0), e, _float(1)), result)
    result = reduced.where(tirx.Let(e, reduced.exponential() * reduced.power, result))
    negative = _number(tirx.bitwise_or(_bits(value), _int(_SIGN)))
    return tirx.Let(value, x, tirx.Let(less, _at_least(negative, _EXP_IS_0), result))


def _stores_halves(func: tirx.PrimFunc) -> bool:
    """Return whether all results of a kernel are rounded to 16 bits."""
    written = [store.buffer for store in nodes_in(func.body, tirx.BufferStore)]
    results = [each for each in written if any(each.same_as(param) for param in func.params)]
    return bool(results) and all(is_half(each.dtype) for each in results)


def _tanh(x: tirx.Expr) -> tirx.Expr:
    """``y = e / (e + 2)`` with ``e = exp(2 |x|) - 1``, which has the digits of a small x.

    ``e / 2 (1 - y)`` is the same, and where e is small has less of the errors of y.
    """
    value, double, e, y, power = (
        tirx.Var(name, "float32") for name in ("value", "double", "e", "y", "power")
    )
    reduced = _Reduced(double)
    half = e * _float(0.5)
    result = tirx.Select(e < _float(1), half - half * y, y)
    result = tirx.Let(y, e / (e + _float(2)), result)
    less_one = power * (reduced.more + reduced.rest) + (power - _float(1))
    result = tirx.Let(power, reduced.power, tirx.Let(e, less_one, result))
    size = _at_most(tirx.abs(value), _TANH_IS_1)
    result = tirx.Let(double, _float(2) * size, reduced.where(result))
    return tirx.Let(value, x, _with_sign(result, value))


def _erf(x: tirx.Expr) -> tirx.Expr:
    value, size, square, exponent = (
        tirx.Var(name, "float32") for name in ("value", "size", "square", "exponent")
    )
    near = size + size * _horner(_ERF_NEAR, square)
    reduced = _Reduced(exponent)
    far = _float(1) - reduced.exponential() * reduced.power
    far = tirx.Let(exponent, size * _horner(_ERF_FAR, size) - size, reduced.where(far))
    result = tirx.Select(size > _float(_ERF_BOUND), far, near)
    result = tirx.Let(square, size * size, result)
    bounded = _at_most(tirx.abs(value), _ERF_IS_1)
    return tirx.Let(value, x, _with_sign(tirx.Let(size, bounded, result), value))


def _rounded_erf(x: tirx.Expr) -> tirx.Expr:
    value, square, place = (tirx.Var(name, "float32") for name in ("value", "square", "place"))
    bound = _ERF_ROUNDED_BOUND**2
    result = _at_least(_at_most(value * _horner(_ERF_ROUNDED, place), 1.0), -1.0)
    result = tirx.Let(place, square * _float(2 / bound) - _float(1), result)
    return tirx.Let(value, x, tirx.Let(square, _at_most(value * value, bound), result))


# ------------------------------------------------------------------------------- the logarithm


def _log(x: tirx.Expr) -> tirx.Expr:
    """``n log(2) + log(m)`` with m from sqrt(1/2) to sqrt(2)."""
    value, f, square, n = (
        tirx.Var(name, "float32") for name in ("value", "fraction", "square", "n")
    )
    bits, exponent = tirx.Var("bits", "int32"), tirx.Var("exponent", "int32")
    small = f * square * _horner(_LOG, f) + n * _float(_LOG2_LOW) - _float(0.5) * square
    result = small + f + n * _float(_LOG2_HIGH)
    result = tirx.Let(square, f * f, result)
    result = tirx.Let(f, _number(bits - (exponent << _int(_FRACTION))) - _float(1), result)
    result = tirx.Let(n, tirx.Cast("float32", exponent), result)
    result = tirx.Let(exponent, (bits - _int(_SQRT_HALF_BITS)) >> _int(_FRACTION), result)
    result = tirx.Let(bits, _bits(value), result)
    result = tirx.Select(value < _float(inf), result, value)
    least = _float(2.0**-126)
    outside = tirx.Select(tirx.abs(value) < least, _float(-inf), _float(nan))
    return tirx.Let(value, x, tirx.Select(value >= least, result, outside))


# ---------------------------------------------------------------------------------- operations


def _with_sign(size: tirx.Expr, signed: tirx.Expr) -> tirx.Expr:
    sign = tirx.bitwise_and(_bits(signed), _int(_SIGN))
    return _number(tirx.bitwise_or(_bits(size), sign))


def _at_least(value: tirx.Expr, bound: float) -> tirx.Expr:
    """Bound a number that may be not-a-number, which the second of two branches is taken for."""
    own = tirx.Var("own", "float32")
    return tirx.Let(own, value, tirx.Select(own < _float(bound), _float(bound), own))


def _at_most(value: tirx.Expr, bound: float) -> tirx.Expr:
    own = tirx.Var("own", "float32")
    return tirx.Let(own, value, tirx.Select(own > _float(bound), _float(bound), own))


def _horner(coefficients: Sequence[float], x: tirx.Expr) -> tirx.Expr:
    """Evaluate a polynomial, whose coefficients begin with the highest power."""
    value = _float(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _float(coefficient)
    return value


def _float(number: float) -> tirx.Expr:
    return tirx.const(number, "float32")


def _int(number: int) -> tirx.Expr:
    return tirx.const(number, "int32")


def _bits(value: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("int32", value)


def _number(bits: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("float32", bits)


_FUNCTIONS: Mapping[str, Callable[[ir.Call], tirx.Expr]] = {
    "tirx.erf": lambda call: _erf(call.args[0]),
    "tirx.exp": lambda call: _exp(call.args[0]),
    "tirx.log": lambda call: _log(call.args[0]),
    "tirx.nearbyint": _rounded,
    "tirx.pow": _power,
    "tirx.sigmoid": lambda call: _sigmoid(call.args[0]),
    "tirx.tanh": lambda call: _tanh(call.args[0]),
}

_ROUNDED: Mapping[str, Callable[[ir.Call], tirx.Expr]] = {
    "tirx.erf": lambda call: _rounded_erf(call.args[0]),
}
"""Functions in kernels whose results are rounded."""
