"""Padding by, or along, lengths that only the run tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, operand, text
from tvm_edge.ops.elements import ensure, integers, plain
from tvm_edge.ops.movement.lengths import int64, is_number, most, shape_of

__all__ = ["pad", "pad_by"]


def pad(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Pad by, or along, lengths of the run; negative pads crop."""
    if attrs["opset"] < 11:
        return None
    x = inputs[0]
    shape = shape_of(x)
    pads = integers(bb, inputs, attrs, 1) or []
    axes = integers(bb, inputs, attrs, 3) or list(range(len(shape)))
    if any(isinstance(axis, tirx.Expr) for axis in axes):
        raise NotImplementedError("Pad along axes that only the run tells")
    axes = [int(axis) % len(shape) for axis in axes]
    along = [shape[axis] for axis in axes]
    if not any(isinstance(each, tirx.Expr) for each in (*pads, *along)):
        return None
    if len(pads) != 2 * len(axes):
        raise ValueError(f"a Pad of {len(axes)} axes has {len(pads)} pads")
    before, after = [0] * len(shape), [0] * len(shape)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    mode = text(attrs, "mode", "constant")
    if mode not in _POSITIONS:
        raise NotImplementedError(f"Pad with the mode {mode}")
    touched = [
        not (is_number(b, 0) and is_number(a, 0)) for b, a in zip(before, after, strict=True)
    ]
    if mode != "constant":  # which needs nothing to repeat
        some = [int64(d) > 0 for d, touch in zip(shape, touched, strict=True) if touch]
        ensure(bb, tirx.all(*some))
    fill = operand(inputs, 2)
    return pad_by(bb, x, before, after, mode=mode, fill=fill)


def pad_by(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    before: Sequence[Any],
    after: Sequence[Any],
    *,
    mode: str = "constant",
    fill: relax.Expr | None = None,
) -> relax.Var:
    """Pad each axis by numbers or expressions; negative ones crop.

    Parameters
    ----------
    bb : relax.BlockBuilder
    x : relax.Expr
    before, after : sequence of (int or tirx.Expr)
        One for each axis.
    mode : {"constant", "edge", "reflect", "wrap"}
    fill : relax.Expr, optional
        A tensor of one element. Default: zero.
    """
    position = _POSITIONS[mode]
    touched = [
        not (is_number(b, 0) and is_number(a, 0)) for b, a in zip(before, after, strict=True)
    ]
    dtype = str(x.ty.dtype)
    if fill is None:
        fill = relax.const(np.zeros((), dtype), dtype)
    elif fill.ty.ndim:
        fill = bb.emit(relax.op.reshape(fill, ()))

    def padded(
        data: te.Tensor, value: te.Tensor, front: Sequence[Any], back: Sequence[Any]
    ) -> te.Tensor:
        lengths = list(data.shape)
        made = [plain(length + f + b) for length, f, b in zip(lengths, front, back, strict=True)]

        def element(*index: Any) -> Any:
            places = [i - f for i, f in zip(index, front, strict=True)]
            at = [
                position(place, length) if touch else place
                for place, length, touch in zip(places, lengths, touched, strict=True)
            ]
            if mode != "constant":
                return data(*at)
            inside = [
                tirx.all(place >= 0, place < length)
                for place, length, touch in zip(places, lengths, touched, strict=True)
                if touch
            ]
            if not inside:
                return data(*at)
            return tirx.if_then_else(reduce(tirx.all, inside), data(*places), value())

        return te.compute(made, element, name="padded")

    widths = [[int64(width) for width in side] for side in (before, after)]
    return bb.emit_te(padded, x, fill, *widths, primfunc_name_hint="pad")


def _reflected(place: Any, length: Any) -> Any:
    period = most(2 * (length - 1), 1)
    place = tirx.floormod(place, period)
    return tirx.min(place, period - place)


_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "constant": lambda place, _length: place,
    "edge": lambda place, length: tirx.max(tirx.min(place, length - 1), tirx.const(0, "int64")),
    "reflect": _reflected,
    "wrap": lambda place, length: tirx.floormod(place, length),
}
