"""Functions of one 8-bit number: what stands between it and another one, as a table.

An activation of a quantised model is a chain as DEQUANTIZE, HardSigmoid, QUANTIZE, DEQUANTIZE,
multiply, QUANTIZE: three divisions and roundings for each element, of which there are 256. Where an
instruction looks a vector up in a table, that takes less than one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops import DEQUANTIZE, QUANTIZE
from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape
from tvm_edge.relay_passes.ir.workloads import INT8_TYPES
from tvm_edge.relay_passes.quantize.encodings import Encoding, encoding_of
from tvm_edge.relay_passes.quantize.quantized_constants import quantized_constant, real_constant

__all__ = ["ByteFunctions", "requantized"]

_Bound = Mapping[relax.Var, relax.Expr]

_BOUNDS = ("relax.clip", "relax.nn.relu")
"""Functions that are cheaper on 8-bit numbers as they are."""


def _clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=["float64"])(x)


_IN_FLOAT32: Mapping[str, Callable[..., np.ndarray]] = {
    "relax.abs": np.abs,
    "relax.add": np.add,
    "relax.clip": _clip,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.negative": np.negative,
    "relax.nn.relu": lambda x: np.maximum(x, np.float32(0)),
    "relax.subtract": np.subtract,
}
"""By the names of operators; each is rounded once, to float32."""

_EXACT: Mapping[str, Callable[..., np.ndarray]] = {
    "relax.erf": _erf,
    "relax.exp": np.exp,
    "relax.log": np.log,
    "relax.nn.gelu": lambda x: x * 0.5 * (1 + _erf(x * 0.5**0.5)),
    "relax.nn.silu": lambda x: x * _sigmoid(x),
    "relax.power": np.power,
    "relax.sigmoid": _sigmoid,
    "relax.sqrt": np.sqrt,
    "relax.tanh": np.tanh,
}
"""Calculated in float64 and rounded to float32."""

_LEAKY = "relax.nn.leakyrelu"


class ByteFunctions:
    """Tables of a function's values.

    Parameters
    ----------
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to; it may grow.
    """

    def __init__(self, bound: _Bound) -> None:
        self._bound = bound
        self._arguments: dict[relax.Var, relax.Var | None] = {}

    def argument(self, expr: relax.Expr, encoding: Encoding) -> relax.Var | None:
        """Return the DEQUANTIZE of the one 8-bit tensor that `expr`, quantised, is a function of.

        ``None`` if there is none, or all that it does to the numbers is to bound them.
        """
        found = self._argument(expr)
        if found is None:
            return None
        alike = self._encoding(found).stored_as(encoding.dtype) == encoding
        return None if alike and self._is_bound(expr, found) else found

    def table(self, expr: relax.Expr, encoding: Encoding) -> np.ndarray:
        """Return `expr` quantised for each number of its argument, in the order of those.

        Parameters
        ----------
        expr : relax.Expr
            It has an :meth:`argument`.
        encoding : Encoding
            Of the result; the argument is stored in the same type.
        """
        argument = self._argument(expr)
        assert argument is not None
        with np.errstate(all="ignore"):  # infinities and not-a-number are results, too
            known = {argument: _all_numbers(self._encoding(argument).stored_as(encoding.dtype))}
            return _quantized(self._values(expr, known), encoding).astype(encoding.dtype)

    def _argument(self, expr: relax.Expr) -> relax.Var | None:
        if not isinstance(expr, relax.Var):
            return None
        if expr not in self._arguments:
            self._arguments[expr] = self._found(expr, self._bound.get(expr))
        return self._arguments[expr]

    def _found(self, var: relax.Var, value: relax.Expr | None) -> relax.Var | None:
        if is_call(value, DEQUANTIZE):
            data = value.args[0]
            dtype = str(data.ty.dtype)
            if dtype not in INT8_TYPES or encoding_of(value, dtype) is None:
                return None
            made = self._bound.get(data)
            if is_call(made, QUANTIZE) and encoding_of(made, dtype) is not None:
                inner = self._argument(made.args[0])
                if inner is not None:
                    return inner
            return None if constant_of(data) is not None else var
        if not is_call(value, *_IN_FLOAT32, *_EXACT, _LEAKY):
            return None
        tensors = [arg for arg in value.args if _scalar(arg, self._bound) is None]
        found = {self._argument(arg) for arg in tensors}
        shapes = {static_shape(each.ty) for each in (*tensors, var)}
        if len(found) != 1 or len(shapes) != 1 or None in shapes:
            return None
        return next(iter(found))

    def _is_bound(self, expr: relax.Expr, argument: relax.Var) -> bool:
        """Return whether an expression is its argument but for bounds."""
        value = self._bound.get(expr)
        if not is_call(value, *_BOUNDS):
            return False
        return value.args[0] == argument or self._is_bound(value.args[0], argument)

    def _values(self, expr: relax.Expr, known: dict[relax.Var, np.ndarray]) -> np.ndarray:
        constant = _scalar(expr, self._bound)
        if constant is not None:
            return constant
        if expr not in known:
            value = self._bound[expr]
            if is_call(value, DEQUANTIZE):
                quantize = self._bound[value.args[0]]
                dtype = str(value.args[0].ty.dtype)
                own = encoding_of(quantize, dtype)
                assert own is not None
                numbers = _quantized(self._values(quantize.args[0], known), own)
                known[expr] = _real(numbers, self._encoding(expr))
            else:
                operands = [self._values(arg, known) for arg in value.args]
                known[expr] = _applied(value, operands).astype("float32")
        return known[expr]

    def _encoding(self, var: relax.Var) -> Encoding:
        value = self._bound[var]
        found = encoding_of(value, str(value.args[0].ty.dtype))
        assert found is not None
        return found


def _applied(call: relax.Call, operands: Sequence[np.ndarray]) -> np.ndarray:
    name = str(call.op.name)
    if name == _LEAKY:
        (x,) = operands
        return np.where(x > 0, x, x * np.float32(call.attrs.alpha))
    if name in _EXACT:
        return _EXACT[name](*(each.astype("float64") for each in operands))
    return _IN_FLOAT32[name](*operands)


def requantized(own: Encoding, encoding: Encoding) -> np.ndarray:
    """Return the table of a tensor that is quantised anew, by another scale."""
    return _quantized(_all_numbers(own), encoding).astype(encoding.dtype)


def _all_numbers(encoding: Encoding) -> np.ndarray:
    limits = np.iinfo(encoding.dtype)
    return _real(np.arange(limits.min, limits.max + 1, dtype="int32"), encoding)


def _real(numbers: np.ndarray, encoding: Encoding) -> np.ndarray:
    return (numbers - encoding.zero).astype("float32") * np.float32(encoding.scale)


def _quantized(real: np.ndarray, encoding: Encoding) -> np.ndarray:
    """Round as :func:`tvm_edge.ops.quantize` does: not-a-number becomes the lowest number."""
    limits = np.iinfo(encoding.dtype)
    low, high = (np.float32(limit - encoding.zero) for limit in (limits.min, limits.max))
    inside = np.minimum(np.fmax(real / np.float32(encoding.scale), low), high)
    return np.rint(inside).astype("int32") + encoding.zero


def _scalar(expr: relax.Expr, bound: _Bound) -> np.ndarray | None:
    """One number, which is broadcast; it may be stored in 8 bits."""
    value = getattr(expr, "value", None)
    if isinstance(value, int | float):
        return np.float32(value)
    whole = quantized_constant(expr, bound)
    constant = real_constant(expr, bound) if whole is None else whole.real
    if constant is None or constant.size != 1:
        return None
    return np.float32(constant.item())
