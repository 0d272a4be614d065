"""Signals: windows, and Fourier transforms as products with matrices of cosines and sines.

Transforms are in float64 whatever the data's type: sums of waves cancel, and the error of a zero
should be small beside what was added. They are meant for a few hundred points; the fast transform
of many has no place in a network yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, operand
from tvm_edge.ops.elements import ensure, plain
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of

__all__: list[str] = []

# Points: the matrices have their square.
_LONGEST = 4096


def _dft(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    x, shape = inputs[0], lengths_of(inputs[0].ty)
    length = constant_of(operand(inputs, 1))
    if attrs["opset"] >= 20:
        named = constant_of(operand(inputs, 2))
        axis = -2 if named is None else int(named.item())
        known = operand(inputs, 2) is None or named is not None
    else:
        axis, known = int(attrs.get("axis", 1)), True
    if shape is None or not known or (operand(inputs, 1) is not None and length is None):
        raise NotImplementedError("DFT of an axis, or to a length, that a kernel calculates")
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    axis %= len(shape)
    if axis == len(shape) - 1:
        raise ValueError("a DFT of the axis of real and imaginary parts")
    default = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    points = default if length is None else int(length.item())
    if isinstance(shape[axis], tirx.Expr) and (length is not None or (inverse and onesided)):
        raise NotImplementedError(
            "DFT of an open axis to a given length, or inverse and onesided; fix the axis with "
            "input_shapes"
        )
    return bb.normalize(_transform(bb, x, axis, points, inverse, onesided))


def _stft(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Transform frames of the signal, which overlap, times the window."""
    x, shape, window = inputs[0], lengths_of(inputs[0].ty), operand(inputs, 2)
    step, length = constant_of(inputs[1]), constant_of(operand(inputs, 3))
    if shape is None or step is None or (operand(inputs, 3) is not None and length is None):
        raise NotImplementedError("STFT of a frame or step that a kernel calculates")
    if length is not None:
        points = int(length.item())
    elif window is not None:
        points = int(window.ty.shape[0])
    elif isinstance(shape[1], int):
        points = shape[1]
    else:
        raise NotImplementedError("STFT without a window or frame_length, of an open length")
    hop = int(step.item())
    frames = plain(1 + (shape[1] - points) // hop)
    if isinstance(frames, tirx.Expr):
        ensure(bb, shape[1] >= points)
    elif frames < 1:
        raise ValueError(f"a STFT of {shape[1]} samples with frames of {points}")
    if x.ty.ndim == 2:
        x = bb.emit(relax.op.expand_dims(x, 2))
    framed = _frames(bb, x, frames, points, hop)
    if window is not None:
        framed = bb.emit(relax.op.multiply(framed, relax.op.reshape(window, (1, 1, points, 1))))
    return bb.normalize(_transform(bb, framed, 2, points, False, bool(attrs.get("onesided", 1))))


def _frames(
    bb: relax.BlockBuilder, x: relax.Expr, frames: Any, points: int, hop: int
) -> relax.Expr:
    """Cut ``(batch, length, parts)`` into frames ``(batch, frames, points, parts)``."""
    if isinstance(frames, int):
        places = np.arange(frames)[:, None] * hop + np.arange(points)
        cut = bb.emit(relax.op.take(x, relax.const(places.reshape(-1), "int64"), 1, mode="clip"))
        return bb.emit(relax.op.reshape(cut, (x.ty.shape[0], frames, points, x.ty.shape[2])))

    def framed(signal: te.Tensor) -> te.Tensor:
        count = tirx.floordiv(signal.shape[1] - points, tirx.IntImm("int64", hop)) + 1
        return te.compute(
            (signal.shape[0], count, points, signal.shape[2]),
            lambda b, f, p, c: signal(b, f * hop + p, c),
            name="frames",
        )

    return bb.emit_te(framed, x, primfunc_name_hint="frames")


def _transform(
    bb: relax.BlockBuilder, x: relax.Expr, axis: int, points: Any, inverse: bool, onesided: bool
) -> relax.Expr:
    """Transform `points` along `axis`; the last axis has real and imaginary parts."""
    shape, dtype = lengths_of(x.ty), str(x.ty.dtype)
    assert shape is not None
    if isinstance(points, tirx.Expr):
        read = points
        cosines, sines = _open_angles(bb, points, inverse, onesided)
    else:
        if not 0 < points <= _LONGEST:
            raise NotImplementedError(f"a Fourier transform of {points} points")
        half = points // 2 + 1
        read = min(shape[axis], half if inverse and onesided else points)
        made = half if onesided and not inverse else points
        # The angle within one turn, so that it keeps its digits.
        angle = np.outer(np.arange(read), np.arange(made)) % points * (2 * np.pi / points)
        scale = np.full((read, 1), 1 / points if inverse else 1.0)
        if inverse and onesided:
            # Of each pair of conjugates one is given; the first bin and the middle one are alone.
            twice = [k for k in range(read) if k and 2 * k != points]
            scale[twice] *= 2
        cosines, sines = (relax.const(f(angle) * scale, "float64") for f in (np.cos, np.sin))
    parts = []
    for part in range(shape[-1]):
        at = relax.const(np.int64(part), "int64")
        one = bb.emit(relax.op.take(x, at, len(shape) - 1, mode="clip"))
        one = bb.emit(relax.op.astype(one, "float64"))
        if isinstance(read, int) and read < shape[axis]:
            one = bb.emit(relax.op.strided_slice(one, [axis], [0], [read]))
        parts.append(bb.emit(relax.op.permute_dims(one, _last(axis, len(shape) - 1))))
    real, imaginary = parts[0], parts[1] if len(parts) > 1 else None

    def product(value: relax.Expr, matrix: relax.Expr) -> relax.Expr:
        return bb.emit(relax.op.matmul(value, matrix))

    sign = relax.op.subtract if inverse else relax.op.add
    new_real, new_imaginary = product(real, cosines), product(real, sines)
    if not inverse:
        new_imaginary = bb.emit(relax.op.negative(new_imaginary))
    if imaginary is not None:
        new_real = bb.emit(sign(new_real, product(imaginary, sines)))
        new_imaginary = bb.emit(relax.op.add(new_imaginary, product(imaginary, cosines)))
    results = [new_real] if inverse and onesided else [new_real, new_imaginary]
    back = [
        bb.emit(relax.op.permute_dims(value, _first(axis, len(shape) - 1))) for value in results
    ]
    return bb.emit(relax.op.astype(relax.op.stack(back, len(shape) - 1), dtype))


def _open_angles(
    bb: relax.BlockBuilder, points: tirx.Expr, inverse: bool, onesided: bool
) -> tuple[relax.Expr, relax.Expr]:
    """Calculate the cosines and sines of a transform of an open number of points."""

    def table(function: Callable[[tirx.Expr], tirx.Expr]) -> Callable[..., te.Tensor]:
        def make(lengths: Sequence[tirx.Expr]) -> te.Tensor:
            (count,) = lengths
            made = tirx.floordiv(count, 2) + 1 if onesided else count
            size = tirx.Cast("float64", count)
            turn = tirx.const(2 * np.pi, "float64") / size
            scale = tirx.const(1, "float64") / size if inverse else tirx.const(1, "float64")

            def element(k: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
                angle = tirx.Cast("float64", tirx.floormod(k * n, count)) * turn
                return function(angle) * scale

            return te.compute((count, made), element, name="angles")

        return make

    cosines, sines = (
        bb.emit_te(table(function), [points], primfunc_name_hint="fourier_angles")
        for function in (tirx.cos, tirx.sin)
    )
    return cosines, sines


def _last(axis: int, rank: int) -> list[int]:
    """Return the order of axes that brings `axis` to the end."""
    return [*(i for i in range(rank) if i != axis), axis]


def _first(axis: int, rank: int) -> list[int]:
    """Return the order that undoes :func:`_last`."""
    return [int(i) for i in np.argsort(_last(axis, rank))]


register("BlackmanWindow", "HammingWindow", "HannWindow", forming=(0,))
register("DFT", convert=_dft, forming=(1, 2))
register("STFT", convert=_stft, forming=(1, 3))

register("relax.hamming_window", gpu=PERFORMS)
