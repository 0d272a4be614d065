"""Kernels that stay inside their tensors whatever indices they are given.

Indices are data: they come from a model file or from the inputs of a run. TVM's kernels trust them,
and one out of range reads somewhere else in the process. ONNX leaves it undefined, and ONNX Runtime
raises an error, which a kernel cannot do: here an index takes the nearest element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

__all__ = ["bounded_gather", "clipped_take"]


def clipped_take(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Take in "clip" mode in place of "fast", which does not look at the indices."""
    if str(call.attrs.mode) == "fast":
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        call = bb.normalize(relax.op.take(call.args[0], call.args[1], axis, mode="clip"))
    return call.op.get_attr("FLegalize")(bb, call)


def bounded_gather(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Gather elements or slices with indices in range."""
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
    """Count each index from the front, and hold it inside its axis."""
    dtype = str(indices.dtype)

    def element(*i: tirx.Expr) -> tirx.Expr:
        value, length = indices(*i), tirx.Cast(dtype, lengths[0])
        for axis, extent in enumerate(lengths[1:], 1):
            length = tirx.Select(i[-1] == axis, tirx.Cast(dtype, extent), length)
        value = tirx.Select(value < 0, value + length, value)
        return tirx.max(tirx.min(value, length - 1), tirx.const(0, dtype))

    return te.compute(indices.shape, element, name="bounded")
