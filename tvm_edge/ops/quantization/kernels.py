"""Kernels of linear quantisation: element by element, so that others are fused with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.relay_passes.ir.expressions import const, constant_of

__all__ = [
    "ELEMENTWISE",
    "legalize_byte_table",
    "legalize_dequantize",
    "legalize_quantize",
    "legalize_quantized_add",
    "rounded",
]

ELEMENTWISE = "tvm_edge.elementwise"
"""Attribute of kernels that are element-wise, and that TVM takes for something else."""

_Element = Callable[[tuple[tirx.Expr, ...]], tirx.Expr]


def legalize_quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of :func:`tvm_edge.ops.quantize`."""
    dtype = str(call.attrs["dtype"])
    one = constant_of(call.args[1])
    is_scaled = one is None or not np.all(one == 1)

    def quantized(x: te.Tensor, *parameters: te.Tensor) -> te.Tensor:
        scale, zero = _parameters(call, parameters)

        def element(*i: tirx.Expr) -> tirx.Expr:
            value = tirx.div(x(*i), scale(i)) if is_scaled else x(*i)
            return rounded(value, zero(i), dtype)

        return te.compute(x.shape, element, name="quantized")

    return builder.call_te(quantized, call.args[0], *_tensors(call), primfunc_name_hint="quantize")


def legalize_dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of :func:`tvm_edge.ops.dequantize`."""

    def dequantized(x: te.Tensor, *parameters: te.Tensor) -> te.Tensor:
        scale, zero = _parameters(call, parameters)

        def element(*i: tirx.Expr) -> tirx.Expr:
            return _float(tirx.Cast("int32", x(*i)) - zero(i)) * scale(i)

        return te.compute(x.shape, element, name="dequantized")

    return builder.call_te(
        dequantized, call.args[0], *_tensors(call), primfunc_name_hint="dequantize"
    )


def legalize_quantized_add(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of :func:`tvm_edge.ops.quantized_add`."""
    attrs = call.attrs
    ratio_a, ratio_b, shift = (
        tirx.const(float(attrs[name]), "float32") for name in ("ratio_a", "ratio_b", "shift")
    )
    zero = tirx.const(int(attrs["zero"]), "int32")

    def added(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Expr) -> tirx.Expr:
            real_a, real_b = (_float(x(*i)) for x in (a, b))
            value = real_a * ratio_a + (real_b * ratio_b + shift)
            return rounded(value, zero, str(attrs["dtype"]))

        return te.compute(a.shape, element, name="added")

    return builder.call_te(added, *call.args, primfunc_name_hint="quantized_add")


def legalize_byte_table(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of :func:`tvm_edge.ops.byte_table`."""
    numbers = np.frombuffer(bytes.fromhex(str(call.attrs["table"])), "uint8")

    def looked_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: table[tirx.Cast("int32", x(*i))], name="looked_up")

    return builder.call_te(
        looked_up,
        call.args[0],
        const(numbers, "uint8"),
        primfunc_name_hint="byte_table",
        primfunc_attrs={ELEMENTWISE: True},
    )


def rounded(value: tirx.Expr, zero: tirx.Expr, dtype: str) -> tirx.Expr:
    """Round a number of float32 to even, move it by the zero point, keep it within the type.

    Clipped before it is rounded, which is the same number.
    """
    limits = np.iinfo(dtype)
    low, high = (_difference(int(limit), zero) for limit in (limits.min, limits.max))
    # A comparison with NaN is false: it becomes the lowest number.
    inside = tirx.min(tirx.max(value, low), high)
    return tirx.Cast(dtype, tirx.Cast("int32", tirx.nearbyint(inside)) + zero)


def _difference(limit: int, zero: tirx.Expr) -> tirx.Expr:
    if isinstance(zero, tirx.IntImm):  # a number that schedules see
        return tirx.const(float(limit - int(zero)), "float32")
    return _float(tirx.const(limit, "int32") - zero)


def _float(value: tirx.Expr) -> tirx.Expr:
    return value if value.ty.dtype == "float32" else tirx.Cast("float32", value)


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """Return scale and zero point unless they are one number, which becomes part of the code."""
    return [arg for arg in call.args[1:] if _number(arg) is None]


def _parameters(call: relax.Call, tensors: tuple[te.Tensor, ...]) -> tuple[_Element, _Element]:
    """Return scale and zero point of an element by its index."""
    axis, left = int(call.attrs["axis"]), list(tensors)

    def parameter(arg: relax.Expr, dtype: str) -> _Element:
        number = _number(arg)
        if number is not None:
            return lambda _: tirx.const(number, dtype)
        tensor = left.pop(0)
        return lambda i: tensor(i[axis]) if len(tensor.shape) else tensor()

    return parameter(call.args[1], "float32"), parameter(call.args[2], "int32")


def _number(arg: relax.Expr) -> Any:
    value = constant_of(arg)
    return value.item() if value is not None and value.size == 1 else None
