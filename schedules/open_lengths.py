"""Lengths that only the run tells, in kernels whose indices have 32 bits.

Indices of 32 bits are what GPUs calculate with: a division of 64 bits is a hundred instructions.
Where shapes are open, the host checks them (:mod:`tvm_edge.lowering.check_lengths`) before it
launches a kernel that says :data:`NARROW`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = [
    "MOST_ELEMENTS",
    "NARROW",
    "Length",
    "ceil_div",
    "divides",
    "has_open_lengths",
    "length_of",
    "narrow_open",
    "total",
    "variables_in",
    "wide",
    "with_wide_scalars",
]

Length = Any
"""A number, or an expression of a kernel's variables."""

NARROW = "tvm_edge.narrow"
"""Attribute of a kernel of open shapes: its indices have 32 bits."""

# The last work-group of a launch, and the last tile of a row, may end after the last element.
MOST_ELEMENTS = 2**31 - 2**20
"""Most elements of a tensor of open shape, and the longest axis, that a GPU's kernel takes."""


def length_of(expr: tirx.Expr) -> Length:
    """Return a length as a number where it is one."""
    known = constant(expr)
    return expr if known is None else known


def ceil_div(length: Length, size: Length) -> Length:
    """Return how many parts of `size` cover a length."""
    if isinstance(length, int) and isinstance(size, int):
        return -(-length // size)
    return tirx.floordiv(length + size - 1, size)


def total(lengths: Iterable[Length]) -> Length:
    """Return the product of lengths."""
    lengths = list(lengths)
    whole: Length = prod(each for each in lengths if isinstance(each, int))
    for each in lengths:
        if not isinstance(each, int):
            whole = each if isinstance(whole, int) and whole == 1 else each * whole
    return whole


def divides(size: int, length: Length) -> bool:
    """Return whether parts of `size` fill a length whatever it is in the run."""
    return size == 1 or (isinstance(length, int) and length % size == 0)


def has_open_lengths(func: tirx.PrimFunc) -> bool:
    """Return whether a parameter of a kernel has a shape that is not all numbers."""
    return any(constant(dim) is None for buffer in _buffers(func) for dim in buffer.shape)


def narrow_open(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel of open shapes with 32-bit lengths and indices; others as they are.

    Kernels of 64-bit integers are left alone, and those that were written with their loops.
    """
    is_written = func.attrs is not None and func.attrs.get("tirx.is_scheduled", False)
    if is_written or not isinstance(func.body, s_tir.SBlockRealize) or not has_open_lengths(func):
        return func
    buffers = [*_buffers(func), *func.body.block.alloc_buffers]
    if any(str(buffer.dtype) in ("int64", "uint64") for buffer in buffers):
        return func
    if any(abs(int(value)) > MOST_ELEMENTS for value in nodes_in(func.body, tirx.IntImm)):
        return func
    narrow = tirx.transform.ForceNarrowIndexToInt32()(ir.IRModule({"main": func}))["main"]
    return narrow.with_attrs(func.attrs).with_attr(NARROW, True)


def with_wide_scalars(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel of :func:`narrow_open` whose lengths by value have 64 bits again.

    Callers pass them so.
    """
    given = {
        param: tirx.Var(str(param.name), "int64")
        for param in func.params
        if not isinstance(param.ty, tirx.BufferType) and str(param.ty.dtype) == "int32"
    }
    if not given or func.attrs is None or NARROW not in func.attrs:
        return func
    places = [given.get(param) for param in func.params]
    made = func.specialize({own: tirx.Cast("int32", var) for own, var in given.items()})
    left = iter(made.params)
    params = [next(left) if var is None else var for var in places]
    return tirx.PrimFunc(params, made.body).with_attrs(func.attrs)


def wide(
    expr: tirx.Expr, place: Callable[[tirx.Var], tirx.Expr], dtype: str = "int64"
) -> tirx.Expr:
    """Return a length in 64 bits, which no product of lengths exceeds.

    Parameters
    ----------
    expr : Expr
        Of a kernel's variables.
    place : callable
        Return the value of one, of type `dtype`.
    dtype : str
        Of all numbers of the result.
    """
    known = constant(expr)
    if known is not None:
        return tirx.const(known, dtype)
    if isinstance(expr, tirx.Var):
        return place(expr)
    if isinstance(expr, tirx.Cast):
        return wide(expr.value, place, dtype)
    operation = next((made for kind, made in _OPERATIONS if isinstance(expr, kind)), None)
    if operation is not None:
        return operation(wide(expr.a, place, dtype), wide(expr.b, place, dtype))
    own = tvm_ffi.structural_map(
        expr, (tirx.Var, lambda var: tirx.Cast(str(var.ty.dtype), place(var)))
    )
    return tirx.Cast(dtype, own)


def variables_in(lengths: Iterable[Length]) -> list[tirx.Var]:
    """Return the variables of lengths, each once."""
    known = (length for length in lengths if not isinstance(length, int))
    return list(dict.fromkeys(var for length in known for var in nodes_in(length, tirx.Var)))


_OPERATIONS: tuple[tuple[type, Callable[..., tirx.Expr]], ...] = (
    (tirx.Add, lambda a, b: a + b),
    (tirx.Sub, lambda a, b: a - b),
    (tirx.Mul, lambda a, b: a * b),
    (tirx.FloorDiv, tirx.floordiv),
    (tirx.FloorMod, tirx.floormod),
    (tirx.Max, tirx.max),
    (tirx.Min, tirx.min),
)


def _buffers(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
