"""Constants that are quantised: weights and biases as a model stores them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax

from tvm_edge.ops import DEQUANTIZE
from tvm_edge.ops.quantization.constants import QuantizedConstant, stored_constant
from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape

__all__ = ["quantized_constant", "real_constant"]

_RESHAPES = tuple(
    f"relax.{name}" for name in ("expand_dims", "flatten", "reshape", "squeeze", "nn.batch_flatten")
)


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
        return stored_constant(value)
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
