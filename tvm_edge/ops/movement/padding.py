"""Converter of Pad in every mode, of any width.

TVM repeats, mirrors and wraps no more than one length of an axis, and crops nothing. Here an axis
is taken at constant positions, as :mod:`tvm_edge.ops.resize` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, operand, text
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape

__all__ = ["pad", "pad_image"]


def pad_image(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Pad lines and columns by zeros, as an operator that a convolution takes in."""
    x = inputs[0]
    if attrs["opset"] < 11 or text(attrs, "mode", "constant") != "constant":
        return None
    pads, fill = constant_of(inputs[1]), operand(inputs, 2)
    value = np.zeros(1) if fill is None else constant_of(fill)
    if pads is None or pads.size != 8 or operand(inputs, 3) is not None or x.ty.ndim != 4:
        return None
    if value is None or value.any() or str(x.ty.dtype) not in ("float32", "float16"):
        return None
    widths = pads.reshape(2, 4).T
    if widths.min() < 0 or widths[:2].any():
        return None
    return relax.op.nn.pad(x, [int(width) for width in widths.reshape(-1)])


def pad(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    x, shape, mode = inputs[0], static_shape(inputs[0].ty), text(attrs, "mode", "constant")
    if attrs["opset"] < 11:
        return None
    pads, axes = constant_of(inputs[1]), operand(inputs, 3)
    named = constant_of(axes)
    if pads is None or (axes is not None and named is None):
        raise NotImplementedError("Pad needs constant pads and axes")
    rank = int(x.ty.ndim)
    wanted = range(rank) if named is None else [int(axis) % rank for axis in named.reshape(-1)]
    if pads.size != 2 * len(wanted):
        raise ValueError(f"a Pad of {len(wanted)} axes has {pads.size} pads")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(wanted):
        before[axis], after[axis] = int(pads[i]), int(pads[i + len(wanted)])
    if mode == "constant":
        return _constant_pad(bb, inputs, before, after)
    if shape is None:
        return None
    for axis, length in enumerate(shape):
        if before[axis] or after[axis]:
            positions = _positions(mode, length, before[axis], after[axis])
            x = bb.emit(relax.op.take(x, relax.const(positions, "int64"), axis, mode="clip"))
    return x


def _constant_pad(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], before: list[int], after: list[int]
) -> relax.Expr | None:
    """Crop before TVM pads; choose between data and a value that the run computes."""
    x, value = inputs[0], operand(inputs, 2)
    shape = static_shape(x.ty)
    if min((*before, *after, 0)) >= 0 and (value is None or constant_of(value) is not None):
        return None
    if shape is None:
        raise NotImplementedError("Pad of a shape known only at run time")
    inside = np.ones([1] * len(shape), "bool")
    for axis, length in enumerate(shape):
        if not before[axis] and not after[axis]:
            continue
        positions = np.arange(-before[axis], length + after[axis])
        there = (positions >= 0) & (positions < length)
        along = [1] * len(shape)
        along[axis] = len(positions)
        inside = inside & there.reshape(along)
        x = bb.emit(
            relax.op.take(
                x, relax.const(np.clip(positions, 0, length - 1), "int64"), axis, mode="clip"
            )
        )
    if inside.all():
        return x
    dtype = str(inputs[0].ty.dtype)
    fill = relax.const(np.zeros((), dtype), dtype) if value is None else value
    if value is not None and value.ty.ndim:
        fill = bb.emit(relax.op.reshape(value, ()))
    return bb.emit(relax.op.where(relax.const(inside, "bool"), x, fill))


def _positions(mode: str, length: int, before: int, after: int) -> np.ndarray:
    """Return the positions that the elements of a padded axis come from."""
    # What is cropped is no longer there to be repeated.
    left = np.arange(max(-before, 0), length - max(-after, 0))
    positions = np.arange(-max(before, 0), len(left) + max(after, 0))
    if not len(left):
        raise ValueError(f"a Pad crops {-before} and {-after} of {length} elements")
    if mode == "edge":
        return left[np.clip(positions, 0, len(left) - 1)]
    if mode == "wrap":
        return left[positions % len(left)]
    if mode == "reflect":
        period = max(2 * (len(left) - 1), 1)
        positions = positions % period
        return left[np.minimum(positions, period - positions)]
    raise NotImplementedError(f"Pad with the mode {mode}")
