"""Constants that are quantised: weights and biases as a model stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_edge.ops import DEQUANTIZE
from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape

__all__ = ["QuantizedConstant", "quantized_constant", "real_constant"]

_RESHAPES = tuple(
    f"relax.{name}" for name in ("expand_dims", "flatten", "reshape", "squeeze", "nn.batch_flatten")
)


@dataclass(frozen=True)
class QuantizedConstant:
    """Whole numbers, and scale and zero point in shapes that are broadcast to theirs."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """The numbers less the zero point, in int32."""
        return self.values.astype("int32") - self.zero

    @property
    def real(self) -> np.ndarray:
        """The real numbers that they stand for, in float32."""
        return self.whole.astype("float32") * self.scale


def quantized_constant(
    expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]
) -> QuantizedConstant | None:
    """The constant of a DEQUANTIZE, maybe in another shape or transposed; ``None`` of all else.

    Parameters
    ----------
    expr : relax.Expr
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    """
    value = bound.get(expr, expr)
    if is_call(value, DEQUANTIZE):
        numbers, scale, zero = map(constant_of, value.args)
        if numbers is None or scale is None or zero is None:
            return None
        along = [1] * numbers.ndim
        if scale.ndim:
            along[int(value.attrs["axis"])] = -1
        return QuantizedConstant(numbers, scale.reshape(along), zero.reshape(along))
    if not is_call(value, *_RESHAPES, "relax.permute_dims"):
        return None
    inner, shape = quantized_constant(value.args[0], bound), static_shape(value.ty)
    if inner is None or shape is None:
        return None
    parts = inner.values, inner.scale, inner.zero
    if is_call(value, "relax.permute_dims"):
        axes = value.attrs.axes
        order = None if axes is None else [int(axis) for axis in axes]
        return QuantizedConstant(*(part.transpose(order) for part in parts))
    return QuantizedConstant(*(_reshaped(part, inner.values.shape, shape) for part in parts))


def _reshaped(part: np.ndarray, before: tuple[int, ...], after: tuple[int, ...]) -> np.ndarray:
    """A part that is broadcast to a shape, for another shape of as many elements."""
    if part.size == 1:
        return part.reshape([1] * len(after))
    return np.broadcast_to(part, before).reshape(after)


def real_constant(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> np.ndarray | None:
    """A constant of float32, maybe in another shape; ``None`` of all else."""
    value = bound.get(expr, expr)
    if is_call(value, *_RESHAPES):
        inner, shape = real_constant(value.args[0], bound), static_shape(value.ty)
        return None if inner is None or shape is None else inner.reshape(shape)
    found = constant_of(value)
    return found if found is not None and found.dtype == np.float32 else None
