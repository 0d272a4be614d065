"""Softmax on a CPU, row by row, each while it is in a core's cache.

A row is read from memory once. Its largest element, its sum and its results are loops over pieces
of some vectors: so many accumulators keep a core busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add, mul
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, either, function, hold, registers

__all__ = ["softmax"]

Length = Any
"""An int, or an expression of lengths that only the run tells."""

Combine = Callable[[Any, Any], Any]
Lanes = Callable[[Any], Any]
"""Gives the value of an accumulator's lane."""

_VECTORS = 4
"""Vectors of a piece."""

_MIN_TO_SPREAD = 1 << 12  # elements that one core is through with before another has woken up
_LOWEST = -3.4028234663852886e38


def softmax(shape: Sequence[Length], axis: int, spec: DeviceSpec, *, log: bool) -> Kernel:
    """Softmax along an axis, or its logarithm, of float32.

    Parameters
    ----------
    shape : sequence of int or tirx.Expr
        Variables stand for lengths that only the run tells.
    axis : int
    spec : DeviceSpec
        The CPU: its vector registers decide the pieces of a row.
    log : bool
        Whether the result is the logarithm.
    """
    lanes, steps = spec.lanes(), shape[axis]
    outer, inner = reduce(mul, shape[:axis], 1), reduce(mul, shape[axis + 1 :], 1)
    write = _log_softmax if log else _softmax

    def body(x: Any, y: Any) -> None:
        if isinstance(inner, int) and inner < 2 * lanes:
            with _tasks(outer, steps * inner) as row:
                start = hold(row * (steps * inner))
                write(_Row(steps, inner, lanes), _From(x, start), _From(y, start))
            return
        most, *smaller = _widths(_VECTORS * lanes, lanes)
        tiles = (inner + most - 1) // most
        with _tasks(outer * tiles, steps * most) as task:
            column = hold(task % tiles * most)
            start = hold(task // tiles * (steps * inner) + column)

            def columns(first: Any, width: int) -> None:
                at = hold(start + first)
                write(_Columns(steps, inner, width), _From(x, at), _From(y, at))

            def rest() -> None:
                left = inner % most if isinstance(inner, int) else inner - column
                for first, width in _pieces(left, smaller):
                    columns(first, width)

            if isinstance(inner, int) and inner % most == 0:
                columns(0, most)
            else:
                either(column + most <= inner, lambda: columns(0, most), rest)

    tensor = (list(shape), "float32")
    return function([tensor], [tensor], body)


class _From:
    """A buffer from an index on."""

    def __init__(self, buffer: Any, start: Any) -> None:
        self._buffer, self._start = buffer, start

    def __getitem__(self, at: Any) -> Any:
        return self._buffer[self._start + at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._buffer[self._start + at] = value


def _softmax(rows: _Row | _Columns, x: _From, y: _From) -> None:
    largest = _largest(rows, x)
    total = rows.accumulator(0.0)
    for at, lane in rows.elements():
        y[at] = tirx.exp(x[at] - largest(lane))
        total[lane] = total[lane] + y[at]
    one = tirx.const(1.0, "float32")
    factor = rows.combined(total, add, lambda value: one / value)
    for at, lane in rows.elements():
        y[at] = y[at] * factor(lane)


def _log_softmax(rows: _Row | _Columns, x: _From, y: _From) -> None:
    largest = _largest(rows, x)
    total = rows.accumulator(0.0)
    for at, lane in rows.elements():
        total[lane] = total[lane] + tirx.exp(x[at] - largest(lane))
    less = rows.combined(total, add, tirx.log)
    for at, lane in rows.elements():
        y[at] = x[at] - largest(lane) - less(lane)


def _largest(rows: _Row | _Columns, x: _From) -> Lanes:
    largest = rows.accumulator(_LOWEST)
    for at, lane in rows.elements():
        largest[lane] = tirx.max(largest[lane], x[at])
    return rows.combined(largest, tirx.max)


class _Row:
    """A row in memory, whose steps are some numbers each: every one is a row of its own.

    A lane of an accumulator belongs to a number of some of the steps.
    """

    def __init__(self, steps: Length, numbers: int, lanes: int) -> None:
        most = max(1, _VECTORS * lanes // numbers)
        if isinstance(steps, int):
            most = max(1, min(most, steps))
        self._length, self._numbers = steps * numbers, numbers
        self._widths = [numbers * width for width in _widths(most, max(1, lanes // numbers))]

    def elements(self) -> Iterator[tuple[Any, Any]]:
        """Write vectorised loops over all elements: index in memory, and lane."""
        for first, width in _pieces(self._length, self._widths, self._numbers):
            with T.vectorized(0, width) as lane:
                yield first + lane, lane

    def accumulator(self, value: float) -> Any:
        """Return a value for each lane."""
        return _filled(self._widths[0], value)

    def combined(self, found: Any, combine: Combine, finish: Lanes = lambda value: value) -> Lanes:
        """Combine the lanes of each number."""
        width = self._widths[0]
        while width > self._numbers:
            width //= 2
            with T.vectorized(0, width) as lane:
                found[lane] = combine(found[lane], found[lane + width])
        if width == 1:
            value = hold(finish(found[0]))
            return lambda lane: value
        result = registers(self._widths[0], "float32")
        with T.vectorized(0, width) as lane:
            result[lane] = finish(found[lane])
        while width < self._widths[0]:
            with T.vectorized(0, width) as lane:
                result[lane + width] = result[lane]
            width *= 2
        return lambda lane: result[lane]


class _Columns:
    """Rows that run across memory, one beside the other: a lane each."""

    def __init__(self, steps: Length, stride: Length, width: int) -> None:
        self._steps, self._stride, self._width = steps, stride, width

    def elements(self) -> Iterator[tuple[Any, Any]]:
        """Write loops over all elements: index in memory, and lane."""
        with T.serial(0, self._steps) as step, T.vectorized(0, self._width) as lane:
            yield step * self._stride + lane, lane

    def accumulator(self, value: float) -> Any:
        """Return a value for each lane."""
        return _filled(self._width, value)

    def combined(self, found: Any, _combine: Combine, finish: Lanes = lambda value: value) -> Lanes:
        """Finish each row's value."""
        with T.vectorized(0, self._width) as lane:
            found[lane] = finish(found[lane])
        return lambda lane: found[lane]


def _filled(width: int, value: float) -> Any:
    found = registers(width, "float32")
    with T.vectorized(0, width) as lane:
        found[lane] = tirx.const(value, "float32")
    return found


def _widths(most: int, least: int) -> list[int]:
    """Return powers of two up to `most`, the largest first; one at least."""
    width = 1 << most.bit_length() - 1
    widths = [width]
    while width // 2 >= least:
        width //= 2
        widths.append(width)
    return widths


def _pieces(length: Length, widths: Sequence[int], unit: int = 1) -> Iterator[tuple[Any, int]]:
    """Write loops over the pieces of a length: first index and width of each.

    What is left of a known length is one piece, of another one pieces of a unit.
    """
    first: Any = 0
    known = isinstance(length, int)
    for width in widths if known else sorted({*widths, unit}, reverse=True):
        count = (length - first) // width
        if known and count < 2:
            if count:
                yield first, width
        else:
            with T.serial(0, count) as piece:
                yield first + piece * width, width
        first = first + count * width if known else hold(first + count * width)
    if known and first < length:
        yield first, length - first


@contextmanager
def _tasks(count: Length, work: Length) -> Iterator[tirx.Expr]:
    """Write a loop over tasks of some elements each, on all cores where that is worth it."""
    total = count * work
    few = isinstance(total, int) and total < _MIN_TO_SPREAD
    with (T.serial if few else T.parallel)(0, count) as task:
        yield task
