"""Scatter: updates written to, or combined with, the elements that their indices point to.

Every update belongs to one slice of the data, its target. A slice is one element for
``scatter_elements``, and the axes without an index for ``scatter_nd``. Several updates of a slice
give the same result as one after the other. A GPU sorts them by target, without atomic operations,
and a work-item applies all of an element's. On a CPU each core has a part of the result and goes
through all updates; one core writes all updates of few elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import (
    Kernel,
    Tensor,
    each,
    function,
    hold,
    int64,
    register,
    spread,
    when,
)

__all__ = ["REDUCTIONS", "apply_parts", "apply_sorted", "element_targets", "slice_targets"]

Shape = Sequence[int | tirx.Expr]

Combine = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]

# Elements of a slice up to which one core writes all updates.
_FEW = 4
# Elements that one core updates before another has found its part of them.
_MIN_TO_SHARE = 1 << 13

REDUCTIONS: Mapping[str, Combine] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    # As ONNX Runtime compares: a NaN in the data stays, and an update that is NaN counts for
    # nothing.
    "max": lambda old, new: tirx.Select(old < new, new, old),
    "min": lambda old, new: tirx.Select(new < old, new, old),
    "mean": lambda old, new: (old + new) / tirx.const(2, new.ty.dtype),
}
"""New value of an element, by the names that Relax has for it."""

_OF_BOOL: Mapping[str, Combine] = {
    "update": lambda _, new: new,
    "add": tirx.any,
    "mul": tirx.all,
    "max": tirx.any,
    "min": tirx.all,
}


def _combine(reduction: str, dtype: str) -> Combine:
    """Return a reduction, of bools and of whole numbers too."""
    if dtype == "bool":
        return _OF_BOOL[reduction]
    if reduction == "mean" and "int" in dtype:
        return lambda old, new: tirx.truncdiv(old + new, tirx.const(2, dtype))
    return REDUCTIONS[reduction]


def slice_targets(data: Tensor, indices: Tensor, axes: int, spec: DeviceSpec, dtype: str) -> Kernel:
    """Build the kernel that finds the slice of each index tuple of ``scatter_nd``.

    Parameters
    ----------
    data, indices : Tensor
        Shapes of constants and variables (constants alone on a GPU) and types. The tuples lie along
        the last axis of `indices`. An index outside of its axis means the nearest place; negative
        ones count from the end.
    axes : int
        How many axes of the data a tuple indexes.
    spec : DeviceSpec
    dtype : {"int32", "int64"}
        Of the result.

    Returns
    -------
    Kernel
        ``(data, indices, targets)``; of the data the shape alone is read.
    """
    lengths, count = data[0][:axes], prod(indices[0][:-1])

    def body(_: Any, given: Any, targets: Any) -> None:
        def one(at: tirx.Expr) -> None:
            places = [given[at * axes + axis].astype("int64") for axis in range(axes)]
            targets[at] = _flat(places, lengths, range(axes)).astype(dtype)

        _for_each(spec, count, one)

    return function([data, indices], [([count], dtype)], body)


def element_targets(
    data: Tensor, indices: Tensor, axis: int, spec: DeviceSpec, dtype: str
) -> Kernel:
    """Build the kernel that finds the element of each index of ``scatter_elements``.

    Parameters
    ----------
    data, indices, spec, dtype
        As of :func:`slice_targets`. No axis of `indices` but `axis` is longer than the data's.
    axis : int
        Which one the indices are for, at least 0.

    Returns
    -------
    Kernel
        ``(data, indices, targets)``; of the data the shape alone is read.
    """
    count = prod(indices[0])

    def body(_: Any, given: Any, targets: Any) -> None:
        def one(at: tirx.Expr) -> None:
            places, rest = [], at
            for length in reversed(indices[0][1:]):
                extent = int64(length).astype(rest.ty.dtype)
                places.insert(0, tirx.indexmod(rest, extent).astype("int64"))
                rest = hold(tirx.indexdiv(rest, extent))
            places.insert(0, rest.astype("int64"))
            places[axis] = given[at].astype("int64")
            targets[at] = _flat(places, data[0], [axis]).astype(dtype)

        _for_each(spec, count, one)

    return function([data, indices], [([count], dtype)], body)


def apply_parts(
    data: Tensor,
    targets: Tensor,
    updates: Tensor,
    axes: int,
    reduction: str,
    spec: DeviceSpec,
    *,
    by_row: tuple[int, int] | None = None,
) -> Kernel:
    """Build the kernel of the data with all updates, on a CPU.

    Parameters
    ----------
    data, targets, updates : Tensor
        Shapes of constants and variables, and types.
    axes : int
        Number of axes of the data before a slice.
    reduction : str
        A name of :data:`REDUCTIONS`.
    spec : DeviceSpec
    by_row : (int, int), optional
        Lengths of the first axis of data and updates, if the targets of a row of updates are
        elements of the same row of the data: a core then has its own updates.

    Returns
    -------
    Kernel
        ``(data, targets, updates, result)``.
    """
    shape, dtype = data
    cores, merge = max(spec.cores, 1), _combine(reduction, dtype)
    slices, size = prod(shape[:axes]), prod(shape[axes:])
    inner, total, count = (int64(n) for n in (size, prod(shape), targets[0][0]))
    # Where cores share no slice, what they do with one is a loop of constant length.
    few = isinstance(slices, int) and slices < 4 * cores
    whole = isinstance(size, int) and (size <= _FEW or not few)
    rows = None if by_row is None else [int64(n) for n in by_row]
    # Finding out that an update is another core's is slower than a few elements of it.
    alone = isinstance(size, int) and size <= _FEW and rows is None

    def body(given: Any, places: Any, news: Any, result: Any) -> None:
        work = T.Bind(total + count * inner)
        parts = T.Bind(tirx.Select(work < _MIN_TO_SHARE, int64(1), int64(cores)))

        def apply(update: tirx.Expr, low: tirx.Expr, high: tirx.Expr) -> None:
            start = T.Bind(places[update].astype("int64") * inner)

            def element(at: tirx.Expr, source: tirx.Expr) -> None:
                result[at] = merge(result[at], news[source].astype(dtype))

            if rows is not None:
                element(start, update)
            elif whole:
                # Data without elements has none of the updates, either.
                is_own = start < high if alone else tirx.all(start >= low, start < high)
                with when(is_own), T.serial(0, size) as j:
                    element(start + j, update * inner + j)
            else:
                first, last = T.Bind(tirx.max(start, low)), T.Bind(tirx.min(start + inner, high))
                source = T.Bind(update * inner - start + first)
                with T.serial(0, tirx.max(last - first, 0)) as j:
                    element(first + j, source + j)

        def part(index: tirx.Expr) -> None:
            unit, units = (inner, int64(slices)) if whole else (int64(1), total)
            updates_of = [int64(0), count]
            if rows is not None:
                units, unit = rows[0], tirx.indexdiv(total, rows[0])
            ends = [tirx.indexdiv(units * (index + i), parts) for i in (0, 1)]
            low, high = (T.Bind(end * unit) for end in ends)
            if rows is not None:
                each_row = tirx.indexdiv(count, rows[1])
                updates_of = [T.Bind(tirx.min(end, rows[1]) * each_row) for end in ends]
            with T.serial(0, high - low) as i:
                result[low + i] = given[low + i]
            if not alone:
                with T.serial(0, updates_of[1] - updates_of[0]) as i:
                    apply(updates_of[0] + i, low, high)

        spread(parts, work, part)
        if alone:
            with T.serial(0, count) as update:
                apply(update, int64(0), total)

    return function([data, targets, updates], [data], body)


def apply_sorted(
    data: Tensor, targets: Tensor, updates: Tensor, axes: int, reduction: str, spec: DeviceSpec
) -> Kernel:
    """Build the kernel of the data with all updates, on a GPU.

    Parameters as of :func:`apply_parts`, of constant shapes.

    Returns
    -------
    Kernel
        ``(data, order, targets, updates, result)``: `order`, int32, sorts updates by target, equal
        ones in their order, and `targets` are so sorted.
    """
    shape, dtype = data
    inner, total, count = (int(prod(s)) for s in (shape[axes:], shape, targets[0]))
    merge = _combine(reduction, dtype)

    def body(given: Any, order: Any, places: Any, news: Any, result: Any) -> None:
        def copy(at: tirx.Expr) -> None:
            result[at] = given[at]

        def update(rank: tirx.Expr, across: tirx.Expr) -> tirx.Expr:
            return news[order[rank] * inner + across].astype(dtype)

        def last_of_target(index: tirx.Expr) -> None:
            rank, across = hold(tirx.floordiv(index, inner)), hold(tirx.floormod(index, inner))
            target = hold(places[rank])
            following = places[tirx.min(rank + 1, count - 1)]
            with when(tirx.any(rank == count - 1, following != target)):
                result[target * inner + across] = update(rank, across)

        def all_of_target(index: tirx.Expr) -> None:
            rank, across = hold(tirx.floordiv(index, inner)), hold(tirx.floormod(index, inner))
            target = hold(places[rank])
            at = hold(target * inner + across)
            with when(tirx.any(rank == 0, places[tirx.max(rank - 1, 0)] != target)):
                value, turn = register(result[at]), register(rank)
                # Not past the end, whatever a device evaluates of the condition.
                same = places[tirx.min(turn[0], count - 1)] == target
                with T.While(tirx.all(turn[0] < count, same)):
                    value[0] = merge(value[0], update(turn[0], across))
                    turn[0] = turn[0] + 1
                result[at] = value[0]

        each(spec, total, copy)
        each(spec, count * inner, last_of_target if reduction == "update" else all_of_target)

    return function([data, ([count], "int32"), targets, updates], [data], body)


def _flat(places: Sequence[tirx.Expr], lengths: Shape, indexed: Collection[int]) -> tirx.Expr:
    """Flatten a position from one on each axis; those of `indexed` axes are brought inside."""
    flat = tirx.const(0, "int64")
    for axis, (place, length) in enumerate(zip(places, lengths, strict=True)):
        extent, index = int64(length), hold(place)
        if axis in indexed:
            index = hold(tirx.Select(index < 0, index + extent, index))
            index = tirx.max(tirx.min(index, extent - 1), int64(0))
        flat = hold(flat * extent + index)
    return flat


def _for_each(spec: DeviceSpec, count: Any, body: Callable[[tirx.Expr], None]) -> None:
    if isinstance(count, int):  # 32-bit divisions are vectors, and shorter on a GPU
        each(spec, count, body)
    else:
        spread(count, count, body)
