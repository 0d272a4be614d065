"""Staging of operands to local memory, step by step, one step ahead in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import registers, when
from tvm_edge.schedules.words import column

__all__ = ["Load", "Stage"]


@dataclass(frozen=True)
class Load:
    """Path of an operand to local memory.

    Attributes
    ----------
    outer : {"term", "row", "quad"}
        The slower axis of the elements' order; elements side by side differ in the other one.
        ``quad`` is the order of ``term``, but with four reduction steps side by side.
    extents : (int, int)
        Reduction length of a step, and rows (or columns) of the tile.
    value : callable
        The operand at a reduction step and a row (or column) of the tile. By ``quad`` at the first
        of four reduction steps, with the lane among them as the argument in between.
    limit : tirx.Expr or None
        Number of rows (or columns).
    local : buffer
    pitch : int
    width : int
        Elements that a work-item brings at once.
    rounded : callable or None
        Rounds to the precision of the multiplications, where that is less.
    dtype : str
        Of the operand and of local memory.
    lines : callable or None
        Four words at a reduction step and a row (or column): their columns are those `width`
        elements.
    """

    outer: Literal["term", "row", "quad"]
    extents: tuple[int, int]
    value: Callable[..., tirx.Expr]
    limit: tirx.Expr | None
    local: Any
    pitch: int
    width: int
    rounded: Callable[[tirx.Expr], tirx.Expr] | None = None
    dtype: str = "float32"
    lines: Callable[[tirx.Expr, tirx.Expr], Sequence[tirx.Expr]] | None = None

    @property
    def size(self) -> int:
        """Elements of a step."""
        return self.extents[0] * self.extents[1]

    def turns(self, items: int) -> int:
        """Return how often each of `items` work-items brings elements."""
        return -(-self.size // (items * self.width))

    def place(self, e: tirx.Expr, lane: Any = 0) -> tuple[tirx.Expr, tirx.Expr]:
        """Return reduction step and row (or column) of an element, or of the `lane`-th after it."""
        depth, rows = self.extents
        if self.outer == "quad":
            quad = tirx.floordiv(e, self.width)
            return tirx.floordiv(quad, rows) * self.width + lane, tirx.floormod(quad, rows)
        if self.outer == "term":
            return tirx.floordiv(e, rows), tirx.floormod(e, rows) + lane
        return tirx.floormod(e, depth) + lane, tirx.floordiv(e, depth)

    def element(self, first: tirx.Expr, e: tirx.Expr, lane: Any) -> tirx.Expr:
        """Return the element `lane` after element `e`, in the step that begins at `first`."""
        if self.outer == "quad":
            term, at = self.place(e)
            return self.value(first + term, lane, at)
        term, at = self.place(e, lane)
        return self.value(first + term, at)

    def put(self, kept: Any, first: int, e: tirx.Expr, before: tirx.Expr) -> None:
        """Store the staged element `e`, `before` reduction steps into local memory."""
        if self.rounded is not None:
            for lane in range(self.width):
                kept[first + lane] = self.rounded(kept[first + lane])
        if self.width > 1 and self.outer == "term":
            with T.vectorized(0, self.width) as lane:
                term, at = self.place(e, lane)
                self.local[(before + term) * self.pitch + at] = kept[first + lane]
            return
        for lane in range(self.width):
            term, at = self.place(e, lane)
            self.local[(before + term) * self.pitch + at] = kept[first + lane]


class Stage:
    """Double buffer of some operands in local memory: two steps, of which one is used.

    Parameters
    ----------
    loads : sequence of Load
    items : int
        Work-items of a work-group.
    item : tirx.Expr
        Index of this work-item.
    reduction : int or None
        Length of the reduction axis; ``None`` where it is a multiple of the step.
    """

    def __init__(
        self, loads: Sequence[Load], items: int, item: tirx.Expr, reduction: int | None
    ) -> None:
        self._loads, self._items, self._item, self._reduction = loads, items, item, reduction
        self._held = [registers(load.turns(items) * load.width, load.dtype) for load in loads]

    def bring(self, first: tirx.Expr) -> None:
        """Read the step that begins at `first` of the reduction axis into registers."""
        for load, kept in zip(self._loads, self._held, strict=True):
            for i in range(load.turns(self._items)):
                e, bounds = self._turn(load, i)
                term, at = load.place(e)
                if load.limit is not None:
                    bounds.append(at < load.limit)
                if self._reduction is not None:
                    bounds.append(first + term < self._reduction)

                if load.lines is not None:
                    lines = load.lines(first + term, at)
                    _bring_columns(kept, i * load.width, lines, bounds)
                    continue
                _bring(kept, i * load.width, load, partial(load.element, first, e), bounds)

    def put(self, into: tirx.Expr) -> None:
        """Write the registers to place 0 or 1 of local memory."""
        for load, kept in zip(self._loads, self._held, strict=True):
            for i in range(load.turns(self._items)):
                e, bounds = self._turn(load, i)
                with when(bounds[0]) if bounds else nullcontext():
                    load.put(kept, i * load.width, e, into * load.extents[0])

    def _turn(self, load: Load, i: int) -> tuple[tirx.Expr, list[tirx.Expr]]:
        """Return the first element of this work-item's turn `i`, and its bounds conditions."""
        e = (self._item + i * self._items) * load.width
        some = (i + 1) * self._items * load.width > load.size
        return e, [e < load.size] if some else []


def _bring(
    kept: Any,
    first: int,
    load: Load,
    value: Callable[[Any], tirx.Expr],
    bounds: Sequence[tirx.Expr],
) -> None:
    """Read one element or a vector into registers, zeros where it is out of bounds."""

    def guarded(lane: Any) -> tirx.Expr:
        if not bounds:
            return value(lane)
        return tirx.if_then_else(tirx.all(*bounds), value(lane), tirx.const(0, load.dtype))

    if load.width == 1:
        kept[first] = guarded(0)
        return
    with T.vectorized(0, load.width) as lane:
        kept[first + lane] = guarded(lane)


def _bring_columns(
    kept: Any, first: int, lines: Sequence[tirx.Expr], bounds: Sequence[tirx.Expr]
) -> None:
    """Read four lines of words whose numbers lie side by side, and keep four columns."""
    held = registers(len(lines), "int32")
    zero = tirx.const(0, "int32")
    for k, line in enumerate(lines):
        held[k] = tirx.if_then_else(tirx.all(*bounds), line, zero) if bounds else line
    for j in range(len(lines)):
        kept[first + j] = column([held[k] for k in range(len(lines))], j)
