"""Element-wise operators on float16 or bfloat16 with constants in float32, as kernels.

A bias, or a factor for each channel, keeps the digits that 16 bits would lose; the result is
rounded when it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx

from tvm_edge.ops.elementwise.kernels import broadcast
from tvm_edge.ops.registry import OPERATORS
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.schedules.float16 import stored, widened

__all__ = ["arithmetic_of", "call_arithmetic"]

_ARITHMETIC = "tvm_edge.arithmetic"
"""Attribute of a kernel: the operator that it is, ``relax.add``."""


def call_arithmetic(
    builder: relax.BlockBuilder,
    operator: str,
    args: Sequence[relax.Expr],
    shape: Sequence[int],
    device: tvm.ir.VDevice | None,
    dtype: str,
) -> relax.Call:
    """Make the kernel of an operator that declares its arithmetic (``float16=``), and call it.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Takes the kernel.
    operator : str
    args : sequence of relax.Expr
        Of `dtype` or float32.
    shape : sequence of int
        Of the result.
    device : VDevice or None
    dtype : {"float16", "bfloat16"}
        Of the result.
    """
    how = OPERATORS[operator].float16
    assert how is not None and how.arithmetic is not None, "the caller has asked"
    arithmetic = how.arithmetic
    given = [te.placeholder(list(arg.ty.shape), str(arg.ty.dtype)) for arg in args]

    def element(*i: tirx.Expr) -> tirx.Expr:
        # Indexed alike, or TVM sees no element-wise kernel to be fused.
        whole = [tuple(map(int, x.shape)) == tuple(shape) for x in given]
        found = [x(*i) if w else broadcast(x, i) for x, w in zip(given, whole, strict=True)]
        return arithmetic(*map(widened, found))

    result = stored(shape, element, dtype)
    func = te.create_prim_func([*given, result], "int64").without_attr("global_symbol")
    func = func.with_attr(_ARITHMETIC, operator)
    if device is not None:
        func = func.with_attr("target", device.target)
    ty = relax.TensorType(list(shape), dtype, device)
    name = operator.removeprefix("relax.")
    return relax.call_tir(builder.add_func(func, name), list(args), ty)


def arithmetic_of(call: relax.Expr, mod: tvm.IRModule) -> str:
    """Return the operator that a call's kernel is; empty for any other kernel."""
    if not is_call(call, "relax.call_tir"):
        return ""
    attrs = mod[call.args[0]].attrs
    return "" if attrs is None else str(attrs.get(_ARITHMETIC, ""))
