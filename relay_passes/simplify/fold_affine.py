"""Fold scales and shifts by constants into the weights and bias before them.

Batch normalisation at inference is ``x * s + t`` with per-channel constants. After a convolution
or a matrix product with constant weights the scale moves into the weights and the shift into the
bias, and the operator is gone. The products are taken in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import (
    const,
    constant_of,
    count_uses,
    is_call,
    rewrite_functions,
)
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.relay_passes.quantize.encodings import of_channels

__all__ = ["FoldAffine"]

# Where the output channels are in the weights, by operator and kernel layout.
_CONV_CHANNEL = {"OIHW": 0, "OIW": 0, "OIDHW": 0}


@tvm.transform.module_pass(opt_level=0, name="FoldAffine")
class FoldAffine:
    """Rewrite batch normalisation to scale and shift, and fold both into producers.

    Examples
    --------
    ``relu(batch_norm(conv2d(x, w)))`` becomes ``relu(add(conv2d(x, w * s), t))``. A batch
    normalisation whose producer has other users or variable weights stays a multiply and an add,
    which FuseOps takes as an element-wise epilogue.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda func: _Folder(mod, func).visit_expr(func))


@mutator
class _Folder(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self._uses = count_uses(func)

    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> relax.Expr:
        op = super().visit_tuple_getitem_(op)
        norm = self._producer(op.tuple_value)
        if op.index != 0 or not is_call(norm, "relax.nn.batch_norm") or norm.attrs.training:
            return op
        values = [value for arg in norm.args[1:5] if (value := constant_of(arg)) is not None]
        if len(values) < 4:
            return op
        gamma, beta, mean, var = values
        scale = 1.0 / np.sqrt(var.astype("float64") + norm.attrs.epsilon)
        if norm.attrs.scale:
            scale = scale * gamma
        shift = -mean * scale
        if norm.attrs.center:
            shift = shift + beta
        data = norm.args[0]
        tail = [-1] + [1] * (data.ty.ndim - 1 - norm.attrs.axis % data.ty.ndim)
        dtype = str(data.ty.dtype)
        scaled = self._scaled(data, scale.reshape(tail), dtype)
        return self._shifted(emit_at(self.builder_, scaled, data), shift.reshape(tail), dtype)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not isinstance(op.op, tvm.ir.Op) or op.op.name not in (
            "relax.multiply",
            "relax.divide",
            "relax.add",
            "relax.subtract",
        ):
            return op
        left, right = op.args
        kind = op.op.name.removeprefix("relax.")
        if kind in ("multiply", "add") and constant_of(left) is not None:
            left, right = right, left
        value = constant_of(right)
        if value is None or not isinstance(op.ty, relax.TensorType):
            return op
        dtype = str(op.ty.dtype)
        # A constant that widens the result is a broadcast, not a scale.
        if not dtype.startswith("float") or not _same_shape(left.ty, op.ty):
            return op
        value = value.astype("float64")
        if kind in ("multiply", "divide"):
            if kind == "divide":
                # x / c stays as it is unless it disappears: x * (1 / c) rounds differently.
                with np.errstate(divide="ignore"):
                    value = 1.0 / value
                if not np.isfinite(value).all() or not self._folds_scale(left, value):
                    return op
            return self._scaled(left, value, dtype)
        return self._shifted(left, value if kind == "add" else -value, dtype)

    def _scaled(self, data: relax.Expr, scale: np.ndarray, dtype: str) -> relax.Expr:
        """``data * scale``, folded into the producer of `data` where it has one."""
        producer = self._sole_producer(data)
        if producer is not None and is_call(producer, "relax.add"):
            shift = constant_of(producer.args[1])
            inner = producer.args[0]
            if shift is not None and self._folds_scale(inner, scale):
                scaled = emit_at(self.builder_, self._scaled(inner, scale, dtype), inner)
                return relax.op.add(scaled, const(shift.astype("float64") * scale, dtype))
        if producer is not None and is_call(producer, "relax.multiply"):
            factor = constant_of(producer.args[1])
            if factor is not None:
                product = const(factor.astype("float64") * scale, dtype)
                return relax.op.multiply(producer.args[0], product)
        weights = self._scaled_weights(data, scale)
        if weights is None or producer is None:
            return relax.op.multiply(data, const(scale, dtype))
        return relax.Call(
            producer.op, [producer.args[0], weights], producer.attrs, producer.ty_args
        )

    def _shifted(self, data: relax.Expr, shift: np.ndarray, dtype: str) -> relax.Expr:
        """``data + shift``; two shifts in a row become one."""
        producer = self._sole_producer(data)
        if producer is not None and is_call(producer, "relax.add"):
            first = constant_of(producer.args[1])
            if first is not None:
                data, shift = producer.args[0], first.astype("float64") + shift
        return relax.op.add(data, const(shift, dtype))

    def _folds_scale(self, data: relax.Expr, scale: np.ndarray) -> bool:
        return self._scaled_weights(data, scale) is not None

    def _scaled_weights(self, data: relax.Expr, scale: np.ndarray) -> relax.Expr | None:
        """The weights of the operator that produces `data`, times `scale`; None if impossible."""
        producer = self._sole_producer(data)
        if producer is None:
            return None
        rank = data.ty.ndim
        if is_call(producer, "relax.nn.conv2d", "relax.nn.conv1d", "relax.nn.conv3d"):
            attrs = producer.attrs
            layout = str(attrs.kernel_layout)
            if layout not in _CONV_CHANNEL or not str(attrs.data_layout).startswith("NC"):
                return None
            axis, out_axis = _CONV_CHANNEL[layout], 1
        elif is_call(producer, "relax.matmul"):
            axis, out_axis = -1, rank - 1
        else:
            return None
        weights = constant_of(producer.args[1])
        if weights is None or (axis == -1 and weights.ndim < 2):
            return None
        per_channel = of_channels(scale, rank, out_axis, weights.shape[axis])
        if per_channel is None:
            return None
        shape = [1] * weights.ndim
        shape[axis] = -1
        return const(weights.astype("float64") * per_channel.reshape(shape), str(weights.dtype))

    def _producer(self, expr: relax.Expr) -> relax.Call | None:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return value if isinstance(value, relax.Call) else None

    def _sole_producer(self, expr: relax.Expr) -> relax.Call | None:
        """The call that produces `expr` if nobody else reads its result."""
        if isinstance(expr, relax.Var) and self._uses.get(expr, 1) > 1:
            return None
        return self._producer(expr)


def _same_shape(a: relax.Type, b: relax.Type) -> bool:
    return (
        isinstance(a, relax.TensorType)
        and a.shape is not None
        and b.shape is not None
        and a.ndim == b.ndim
        and tvm_ffi.structural_equal(a.shape, b.shape)
    )
