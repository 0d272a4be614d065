"""Axes of a Resize whose lengths only the run tells: how long they become, and by what scale.

A scale that other kernels calculate stays on their device; the host reads the lengths that come of
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.elements import ensure, length_tensor, plain, read_by_host
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.schedules.vision.resize_taps import LONGEST, Axis, Filter, repeated

__all__ = [
    "ResizedAxis",
    "axes_by_scales",
    "axes_by_sizes",
    "int64",
    "named_length",
    "scale_vector",
]

# Numerators and denominators of scales whose products with lengths are exact in float32.
_SHORT = 64

_LOCAL = ("asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
"""Coordinates that do not depend on how long an axis is, if it is longer than one element."""

_MANY = 1024


@dataclass(frozen=True)
class ResizedAxis:
    """An axis that is resized.

    Attributes
    ----------
    number : int
    old, new : int or tirx.Expr
        Lengths.
    given : int or None
        Position of its scale in the operand ``scales``.
    scale : float or None
        Constant scale.
    ratio : (int or tirx.Expr, int or tirx.Expr) or None
        New and old length that the scale is the ratio of, where there are ``sizes``.
    start, end : int or None
        Positions in ``roi`` of the part of the axis.
    """

    number: int
    old: Any
    new: Any
    given: int | None = None
    scale: float | None = None
    ratio: tuple[Any, Any] | None = None
    start: int | None = None
    end: int | None = None

    @property
    def is_kept(self) -> bool:
        """Return true if the axis of the result is the operand's in every run."""
        if self.ratio is not None:
            return _same(self.new, self.old) and _same(*self.ratio)
        return self.scale == 1.0

    def repeats(self, how: Filter) -> bool:
        """Return whether each element is repeated as often as the scale says, at any length."""
        if self.scale is None or self.scale != int(self.scale) or how.coordinates not in _LOCAL:
            return False
        return repeated(Axis(_MANY, _MANY * int(self.scale), self.scale), how) > 0


def axes_by_scales(
    bb: relax.BlockBuilder,
    shape: Sequence[Any],
    named: Sequence[int],
    scales: relax.Expr,
    known: Sequence[float | None],
) -> list[ResizedAxis]:
    """Return the axes of scales; lengths that are no products of integers are a kernel's.

    Parameters
    ----------
    bb : relax.BlockBuilder
    shape : sequence of (int or tirx.Expr)
        Of what is resized.
    named : sequence of int
        Axes that `scales` are of.
    scales : relax.Expr
        Vector of float32.
    known : sequence of (float or None)
        Those of `scales` that are constant.

    Raises
    ------
    ValueError
        A constant scale that is not positive.
    """
    constant = [None if scale is None else float(np.float32(scale)) for scale in known]
    new = [_length(shape[axis], scale) for axis, scale in zip(named, constant, strict=True)]
    open_ones = [i for i, length in enumerate(new) if length is None]
    if open_ones:
        olds = [shape[named[i]] for i in open_ones]

        def lengths(factors: te.Tensor, counts: Sequence[Any]) -> te.Tensor:
            def length(i: Any) -> Any:
                made = _scaled(factors(open_ones[-1]), counts[-1])
                for at, place in reversed(list(enumerate(open_ones[:-1]))):
                    made = tirx.Select(i == at, _scaled(factors(place), counts[at]), made)
                return made

            return te.compute((len(open_ones),), length, name="lengths")

        made = bb.emit_te(lengths, scales, [int64(old) for old in olds])
        read = read_by_host(bb, made)
        for i, old, length in zip(open_ones, olds, read, strict=True):
            new[i] = length
            ensure(bb, tirx.all(length >= 0, tirx.any(length == 0, int64(old) > 0)))
    for length in new:
        ensure(bb, tirx.all(int64(length) >= 0, int64(length) <= LONGEST))
    return [
        ResizedAxis(axis, shape[axis], length, i, scale)
        for i, (axis, length, scale) in enumerate(zip(named, new, constant, strict=True))
    ]


def _length(old: Any, scale: float | None) -> Any:
    """Return an axis's new length where integers tell it, rounded as a product of float32."""
    if scale is None:
        return None
    if not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"a Resize has the scale {scale}")
    if not isinstance(old, tirx.Expr):
        return math.floor(np.float32(scale) * np.float32(old))
    over, under = scale.as_integer_ratio()
    if over > _SHORT or under > _SHORT:
        return None
    return plain(tirx.floordiv(old * over, tirx.IntImm("int64", under)))


def _scaled(scale: tirx.Expr, old: tirx.Expr) -> tirx.Expr:
    """Return a new length; -1 for a scale that gives none."""
    product = tirx.floor(scale * old.astype("float32"))
    fits = tirx.all(scale > 0, product <= tirx.const(LONGEST, "float32"))  # no NaN does
    some = tirx.Select(fits, product, tirx.const(0, "float32"))
    return tirx.Select(fits, some.astype("int64"), tirx.const(-1, "int64"))


def axes_by_sizes(
    bb: relax.BlockBuilder,
    shape: Sequence[Any],
    named: Sequence[int],
    sizes: Sequence[Any],
    policy: str,
) -> list[ResizedAxis]:
    """Return the axes of new lengths, or of the one ratio that a policy chooses.

    Parameters
    ----------
    bb : relax.BlockBuilder
    shape : sequence of (int or tirx.Expr)
        Of what is resized.
    named : sequence of int
        Axes that `sizes` are of.
    sizes : sequence of (int or tirx.Expr)
    policy : {"stretch", "not_larger", "not_smaller"}
    """
    pairs = [(size, shape[axis]) for axis, size in zip(named, sizes, strict=True)]
    for size, old in pairs:
        if _same(size, old):
            continue
        size, old = int64(size), int64(old)
        ensure(bb, tirx.any(size == old, tirx.all(size >= 1, old >= 1, size <= LONGEST)))
    if policy == "stretch":
        made = [named_length(bb, size) for size in sizes]
        return [
            ResizedAxis(axis, shape[axis], size, ratio=(size, shape[axis]))
            for axis, size in zip(named, made, strict=True)
        ]
    over, under = (int64(each) for each in pairs[0])
    for size, old in pairs[1:]:
        size, old = int64(size), int64(old)
        less = size * under < over * old
        takes = less if policy == "not_larger" else tirx.Not(less)
        over, under = tirx.Select(takes, size, over), tirx.Select(takes, old, under)
    over, under = named_length(bb, over, 0), named_length(bb, under, 0)
    axes = []
    for axis in named:
        divisor = tirx.max(2 * int64(under), tirx.const(1, "int64"))
        new = tirx.floordiv(2 * int64(over) * shape[axis] + under, divisor)
        new = named_length(bb, new, 0)
        ensure(bb, tirx.all(int64(new) >= 0, int64(new) <= LONGEST))
        axes.append(ResizedAxis(axis, shape[axis], new, ratio=(over, under)))
    return axes


def named_length(bb: relax.BlockBuilder, length: Any, most: int = 1) -> Any:
    """Name an expression of more than `most` lengths: a kernel takes each that it has."""
    length = plain(length)
    if not isinstance(length, tirx.Expr) or isinstance(length, tirx.Var):
        return length
    if len(tirx.analysis.undefined_vars(length)) <= most:
        return length
    return read_by_host(bb, length_tensor(bb, [length], (1,), "int64"))[0]


def scale_vector(bb: relax.BlockBuilder, value: relax.Expr, length: int, name: str) -> relax.Expr:
    """Make a float32 vector of an operand of known length."""
    shape = static_shape(value.ty)
    if shape is None:
        raise NotImplementedError(f"Resize with {name} whose number only the run tells")
    if tuple(shape) != (length,):
        raise ValueError(f"a Resize has {name} of the shape {tuple(shape)}, not ({length},)")
    if str(value.ty.dtype) == "float32":
        return value
    constant = constant_of(value)
    if constant is not None:
        return relax.const(constant.astype("float32"), "float32")
    return bb.emit(relax.op.astype(value, "float32"))


def _same(a: Any, b: Any) -> bool:
    difference = plain(a - b)
    return not isinstance(difference, tirx.Expr) and difference == 0


def int64(value: Any) -> tirx.Expr:
    """Return a length as an expression of 64 bits."""
    return value if isinstance(value, tirx.Expr) else tirx.IntImm("int64", int(value))
