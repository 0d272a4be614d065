"""Layer normalisation that exporters wrote as means, a difference, a square and a root.

Before opset 17 ONNX has no operator of it. One kernel reads a row once: 197 rows of 768 take 30 µs
instead of 64 (one core of an AMD EPYC, Zen 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import (
    const,
    constant_of,
    count_uses,
    is_call,
    lengths_of,
)

__all__ = ["FuseLayerNorm"]


@tvm.transform.module_pass(opt_level=0, name="FuseLayerNorm")
class FuseLayerNorm:
    """Have ``(x - mean) / sqrt(variance + epsilon)`` over last axes be ``relax.nn.layer_norm``.

    Constants that it is multiplied by or that are added become its scale and its bias.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod = _Fuser(mod, func).fused(gvar, func)
        return mod


@dataclass(frozen=True)
class _Norm:
    """Operands and attributes of a normalisation."""

    data: relax.Expr
    scale: np.ndarray
    bias: np.ndarray
    axes: list[int]
    epsilon: float

    def call(self) -> relax.Call:
        scale, bias = const(self.scale, "float32"), const(self.bias, "float32")
        return relax.op.nn.layer_norm(self.data, scale, bias, self.axes, self.epsilon)


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self._uses = count_uses(func)

    def fused(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module, one function rewritten; asked for here, as it is gone with the mutator."""
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not is_call(op, "relax.divide", "relax.multiply", "relax.add"):
            return op
        found = self._scaled(op) or self._normalised(op)
        return op if found is None else found.call()

    # ------------------------------------------------------------------------- scale and bias

    def _scaled(self, op: relax.Call) -> _Norm | None:
        """Recognise a normalisation times or plus a constant."""
        if is_call(op, "relax.divide"):
            return None
        for data, other in _either_way(op):
            norm, value = self._norm(data), constant_of(other)
            if norm is None or value is None or value.ndim > op.args[0].ty.ndim:
                continue
            value = _of_lengths(value, norm.scale.shape)
            if value is None:
                return None
            if is_call(op, "relax.add"):
                return replace(norm, bias=norm.bias + value)
            return replace(norm, scale=norm.scale * value, bias=norm.bias * value)
        return None

    def _norm(self, expr: relax.Expr) -> _Norm | None:
        if isinstance(expr, relax.Var) and self._uses.get(expr, 1) > 1:
            return None
        norm = self._producer(expr)
        if not is_call(norm, "relax.nn.layer_norm") or str(norm.ty.dtype) != "float32":
            return None
        scale, bias = (constant_of(arg) for arg in norm.args[1:])
        if scale is None or bias is None:
            return None
        attrs = norm.attrs
        if not (attrs.center and attrs.scale):
            return None
        axes = [int(axis) for axis in attrs.axes]
        return _Norm(norm.args[0], scale, bias, axes, float(attrs.epsilon))

    # ------------------------------------------------------------------------- normalisation

    def _normalised(self, op: relax.Call) -> _Norm | None:
        """Recognise a centred image over its deviation."""
        for centred, variance in self._quotients(op):
            found = self._of_variance(centred, variance)
            if found is not None:
                return found
        return None

    def _quotients(self, op: relax.Call) -> Iterator[tuple[relax.Expr, relax.Expr]]:
        """Yield dividends, and squares of what they are divided by."""
        if is_call(op, "relax.divide"):
            root = self._squared(op.args[1])
            if root is not None:
                yield op.args[0], root
        elif is_call(op, "relax.multiply"):
            for data, other in _either_way(op):
                factor = self._producer(other)
                if is_call(factor, "relax.rsqrt"):
                    yield data, factor.args[0]
                elif is_call(factor, "relax.divide") and _is_number(factor.args[0], 1.0):
                    root = self._squared(factor.args[1])
                    if root is not None:
                        yield data, root

    def _squared(self, expr: relax.Expr) -> relax.Expr | None:
        """Return what `expr` is the root of."""
        root = self._producer(expr)
        if is_call(root, "relax.sqrt"):
            return root.args[0]
        if is_call(root, "relax.power") and _is_number(root.args[1], 0.5):
            return root.args[0]
        return None

    def _of_variance(self, centred: relax.Expr, variance: relax.Expr) -> _Norm | None:
        total, difference = self._producer(variance), self._producer(centred)
        if not is_call(total, "relax.add") or not is_call(difference, "relax.subtract"):
            return None
        data = difference.args[0]
        axes = self._mean_axes(difference.args[1], data)
        lengths = lengths_of(data.ty)
        if axes is None or lengths is None or str(data.ty.dtype) != "float32":
            return None
        own = lengths[-len(axes) :]
        if axes != list(range(len(lengths) - len(axes), len(lengths))):
            return None
        if not all(isinstance(length, int) and length > 0 for length in own):
            return None
        for mean, other in _either_way(total):
            epsilon, square = constant_of(other), self._mean_of(mean, axes)
            if epsilon is not None and epsilon.size == 1 and self._is_square(square, centred):
                scale, bias = np.ones(own, "float32"), np.zeros(own, "float32")
                return _Norm(data, scale, bias, axes, float(epsilon.item()))
        return None

    def _mean_axes(self, expr: relax.Expr, data: relax.Expr) -> list[int] | None:
        mean = self._producer(expr)
        if not is_call(mean, "relax.mean") or not mean.args[0].same_as(data):
            return None
        return _kept_axes(mean)

    def _mean_of(self, expr: relax.Expr, axes: list[int]) -> relax.Expr | None:
        mean = self._producer(expr)
        if not is_call(mean, "relax.mean") or _kept_axes(mean) != axes:
            return None
        return mean.args[0]

    def _is_square(self, expr: relax.Expr | None, root: relax.Expr) -> bool:
        square = None if expr is None else self._producer(expr)
        if is_call(square, "relax.power"):
            return bool(square.args[0].same_as(root)) and _is_number(square.args[1], 2.0)
        return is_call(square, "relax.square", "relax.multiply") and all(
            arg.same_as(root) for arg in square.args
        )

    def _producer(self, expr: relax.Expr) -> relax.Expr | None:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else None


def _either_way(call: relax.Call) -> tuple[tuple[relax.Expr, relax.Expr], ...]:
    a, b = call.args
    return (a, b), (b, a)


def _is_number(expr: relax.Expr, number: float) -> bool:
    value = constant_of(expr)
    return value is not None and value.size == 1 and float(value.item()) == number


def _kept_axes(mean: relax.Call) -> list[int] | None:
    """Return the axes of a mean, sorted, if they stay with length 1."""
    rank = int(mean.args[0].ty.ndim)
    if mean.attrs.axis is None or not mean.attrs.keepdims:
        return None
    return sorted(int(axis) % rank for axis in mean.attrs.axis)


def _of_lengths(value: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant as one of the normalised axes; ``None`` if it has others."""
    rank = len(lengths)
    if set(value.shape[:-rank]) - {1}:
        return None
    own = value.reshape(value.shape[-rank:])
    try:
        return np.broadcast_to(own, lengths).astype("float32")
    except ValueError:  # it makes a longer axis
        return None
