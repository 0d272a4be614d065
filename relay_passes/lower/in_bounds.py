"""Kernels that stay inside their tensors, and do not trap, whatever values they are given.

Indices and divisors are data: they come from a model file or from the inputs of a run. TVM's
kernels trust them. An index out of range reads or writes somewhere else in the process, and an
integer division by zero ends it with SIGFPE. ONNX leaves both undefined, and ONNX Runtime raises
an error, which a kernel cannot do: here an index takes the nearest element, and a division by zero
is zero, as in NumPy. Scatters have kernels of their own (:mod:`tvm_edge.schedules.vision.scatter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

__all__ = ["bounded_gather", "broadcast", "clipped_take", "safe_division"]


def clipped_take(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """``relax.take`` in "clip" mode where it is "fast", which does not look at the indices."""
    if str(call.attrs.mode) == "fast":
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        call = bb.normalize(relax.op.take(call.args[0], call.args[1], axis, mode="clip"))
    return call.op.get_attr("FLegalize")(bb, call)


def bounded_gather(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """``relax.gather_elements`` and ``relax.gather_nd`` with their indices in range."""
    return call.op.get_attr("FLegalize")(bb, _with_bounded_indices(bb, call))


def _with_bounded_indices(bb: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    data, indices = call.args[:2]
    shape = list(data.ty.shape.values)
    if call.op.name == "relax.gather_nd":
        batch = int(call.attrs.batch_dims)
        lengths = shape[batch : batch + int(indices.ty.shape[-1])]
    else:
        lengths = [shape[int(call.attrs.axis)]]
    if isinstance(indices, tvm.ir.GenericConst) and _all_in_range(indices, lengths):
        return call
    bounded = bb.emit(bb.call_te(_nearest, indices, lengths, primfunc_name_hint="bounded"))
    return bb.normalize(relax.Call(call.op, [data, bounded], call.attrs, call.ty_args))


def _all_in_range(indices: tvm.ir.GenericConst, lengths: Sequence[Any]) -> bool:
    if not all(isinstance(length, tirx.IntImm) for length in lengths):
        return False
    values = indices.value.numpy()
    limits = np.asarray([int(length) for length in lengths], "int64")
    return bool(((values >= 0) & (values < limits)).all())


def _nearest(indices: te.Tensor, lengths: Sequence[Any]) -> te.Tensor:
    """Each index counted from the front, and inside its axis."""
    dtype = str(indices.dtype)

    def element(*i: tirx.Expr) -> tirx.Expr:
        value, length = indices(*i), tirx.Cast(dtype, lengths[0])
        for axis, extent in enumerate(lengths[1:], 1):
            length = tirx.Select(i[-1] == axis, tirx.Cast(dtype, extent), length)
        value = tirx.Select(value < 0, value + length, value)
        return tirx.max(tirx.min(value, length - 1), tirx.const(0, dtype))

    return te.compute(indices.shape, element, name="bounded")


def safe_division(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Integer division and remainder: by 0 it is 0, by -1 it does not overflow."""
    a, b = call.args
    dtype = str(call.ty.dtype)
    if "int" not in dtype or not _may_trap(b) or not all(_is_tensor(x) for x in (a, b)):
        return call.op.get_attr("FLegalize")(bb, call)
    operator = call.op.name.removeprefix("relax.")
    divide = {
        "divide": tirx.truncdiv,
        "floor_divide": tirx.floordiv,
        "mod": tirx.truncmod,
        "floor_mod": tirx.floormod,
    }[operator]
    shape = call.ty.shape.values
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def divided(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Expr) -> tirx.Expr:
            top, bottom = broadcast(x, i), broadcast(y, i)
            # No Select around the division: TVM would simplify the divisor under its condition
            # and evaluate both sides.
            divisor = tirx.Select(bottom == 0, one, bottom)
            factor = tirx.Select(bottom == 0, zero, one)
            if not dtype.startswith("uint"):
                minus = tirx.const(-1, dtype)
                divisor = tirx.Select(bottom == minus, one, divisor)
                factor = tirx.Select(bottom == minus, minus, factor)
            quotient = divide(top, divisor)
            return quotient * factor if "divide" in operator else quotient

        return te.compute(shape, element, name=operator)

    return bb.call_te(divided, a, b, primfunc_name_hint=operator)


def _is_tensor(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and value.ty.shape is not None


def _may_trap(divisor: relax.Expr) -> bool:
    if not isinstance(divisor, tvm.ir.GenericConst):
        return True
    values = divisor.value.numpy()
    return bool(((values == 0) | (values == -1)).any())


def broadcast(x: te.Tensor, indices: Sequence[tirx.Expr]) -> tirx.Expr:
    """The element of `x` that is used for one of a result, at `indices`."""
    own = indices[len(indices) - len(x.shape) :]
    lengths = zip(x.shape, own, strict=True)
    return x(*(0 if isinstance(n, tirx.IntImm) and int(n) == 1 else i for n, i in lengths))
