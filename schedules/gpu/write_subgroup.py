"""Code generation of convolutions by sub-groups: input and weights in registers, and shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

from tvm import ir, sym, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.accesses import coefficient
from tvm_edge.schedules.emit import hold, launch, registers, when
from tvm_edge.schedules.gpu.epilogue import substituted
from tvm_edge.schedules.gpu.subgroup_calls import (
    block_read,
    block_write,
    lane_of,
    pin,
    shuffle,
    shuffle_down,
)
from tvm_edge.schedules.gpu.subgroup_windows import Windows, Written

__all__ = ["write_sub_groups"]

# Alignment of the address of a block write, in floats.
_WRITE_ALIGNMENT = 4

Known = Sequence[tuple[tirx.Var, Any]]


def write_sub_groups(conv: Windows, written: Written) -> None:
    """Write the launch that computes a convolution."""
    tile = conv.sub_group
    with launch(prod(written.counts), tile.size) as (group, _):
        pin(tile.size)
        known: list[tuple[tirx.Var, Any]] = [(written.lane, lane_of())]
        numbers = (written.batch, written.block, written.line, written.column)
        below = 1
        for number, count in zip(reversed(numbers), reversed(written.counts), strict=True):
            known.append((number, hold(tirx.floormod(tirx.floordiv(group, below), count))))
            below *= count
        accumulators = registers(tile.channels * tile.lines, "float32")
        for i in range(tile.channels * tile.lines):
            accumulators[i] = tirx.const(0, "float32")
        height, together = conv.lines.taps, _channels_together(conv)
        with T.serial(0, conv.channels // together) as first:
            for i in range(together):
                channel = first * together + i
                step = _Step(conv, written, [*known, (written.channel, channel)], accumulators)
                if tile.unrolls((height, conv.columns.taps)):
                    step.add(list(range(height)))
                    continue
                with T.serial(0, height) as tap:
                    step.add([tap])
        _store(conv, written, known, accumulators)


def _channels_together(conv: Windows) -> int:
    """Count the input channels of a loop's step: several for single pixels, to overlap reads."""
    if conv.lines.taps * conv.columns.taps > 1:
        return 1
    return next(n for n in (4, 2, 1) if conv.channels % n == 0)


class _Step:
    """Contribution of one input channel to the accumulators.

    Parameters
    ----------
    known : sequence of (Var, Expr)
        The indices of the tile, the lane and the input channel.
    """

    def __init__(self, conv: Windows, written: Written, known: Known, accumulators: Any) -> None:
        self._conv, self._written, self._known = conv, written, known
        self._accumulators = accumulators

    def add(self, taps: Sequence[Any]) -> None:
        """Add the products of some lines of the window, each of which is read once."""
        tile, columns = self._conv.sub_group, self._conv.columns
        weights = [self._weights(tap) for tap in taps]
        for uses in self._input_lines(taps):
            values = self._line(*uses[0])
            for (line, tap), x in ((use, x) for use in uses for x in range(columns.taps)):
                own = weights[taps.index(tap) if len(taps) > 1 else 0]
                for row in range(tile.channels):
                    which, lane = divmod(x * tile.channels + row, tile.size)
                    at = line * tile.channels + row
                    product = shuffle(own[which], lane) * values[x]
                    self._accumulators[at] = self._accumulators[at] + product

    def _input_lines(self, taps: Sequence[Any]) -> list[list[tuple[int, Any]]]:
        """Group outputs' lines and taps by the line of the input that they read."""
        lines = self._conv.lines
        found: dict[Any, list[tuple[int, Any]]] = {}
        for line in range(self._conv.sub_group.lines):
            for tap in taps:
                alone = self._conv.flat or not isinstance(tap, int)
                at = line if alone else line * lines.stride + tap * lines.dilation
                found.setdefault(at, []).append((line, tap))
        return [found[at] for at in sorted(found)]

    def _weights(self, tap: Any) -> Any:
        """Load the weights of one line of the window into registers."""
        tile = self._conv.sub_group
        count = tile.pitch((1, self._conv.columns.taps)) // tile.size
        first = hold(substituted(self._written.weight(tap), self._known))
        own = registers(count, "float32")
        for i in range(count):
            own[i] = block_read(self._written.weights, first + i * tile.size)
        return own

    def _line(self, line: int, tap: Any) -> list[tirx.Expr]:
        """Return the value that each tap along the columns reads of a line of the input.

        Taps that are a multiple of the stride apart read what the first of them reads, some lanes
        further on.
        """
        columns, size = self._conv.columns, self._conv.sub_group.size
        values: list[tirx.Expr] = []
        runs: dict[int, tuple[int, Any]] = {}
        held = registers(columns.taps, "float32")
        for x in range(columns.taps):
            phase = x * columns.dilation % columns.stride
            if phase not in runs:
                last = max(
                    (other - x) * columns.dilation // columns.stride
                    for other in range(x, columns.taps)
                    if other * columns.dilation % columns.stride == phase
                )
                count = -(-last // size) + 1
                runs[phase] = x, self._run(line, (tap, x), count)
            first, run = runs[phase]
            whole, lanes = divmod((x - first) * columns.dilation // columns.stride, size)
            if lanes:
                held[x] = shuffle_down(run[whole], run[whole + 1], lanes)
            values.append(held[x] if lanes else run[whole])
        return values

    def _run(self, line: int, taps: tuple[Any, int], count: int) -> Any:
        """Load a tap's values into registers, for these columns and those after them."""
        run = registers(count, "float32")
        written, size = self._written, self._conv.sub_group.size
        for i in range(count):
            value, limits = written.data(line, taps, i * size)
            block = _as_block(written, value, limits)
            guarded = value
            if limits:
                guarded = tirx.if_then_else(tirx.all(*limits), value, tirx.const(0, "float32"))
            lanes = substituted(guarded, self._known)
            if block is None:
                run[i] = lanes
                continue
            buffer, offset, conditions = block
            whole = block_read(buffer, substituted(offset, self._known))
            if not conditions:
                run[i] = whole
                continue
            with T.If(substituted(tirx.all(*conditions), self._known)):
                with T.Then():
                    run[i] = whole
                with T.Else():
                    run[i] = lanes
        return run


def _as_block(
    written: Written, value: tirx.Expr, limits: Sequence[tirx.Expr]
) -> tuple[Any, tirx.Expr, list[tirx.Expr]] | None:
    """Return vector, offset and conditions under which the lanes of `value` are one block read."""
    if not isinstance(value, ir.TensorLoad) or len(value.indices) != 1:
        return None
    lane, size = written.lane, int(written.size)
    if coefficient(value.indices[0], lane) != 1:
        return None
    ends = []
    for limit in limits:
        if not _is_linear(limit, lane):
            return None
        # A linear condition that holds for the first and the last lane holds between them.
        ends += [substituted(limit, [(lane, tirx.const(at, "int32"))]) for at in (0, size - 1)]
    if ends and not _may_hold(written, ends):
        return None
    first = written.simplify.simplify(
        substituted(value.indices[0], [(lane, tirx.const(0, "int32"))])
    )
    return value.source, first, written.needed(ends)


def _may_hold(written: Written, conditions: Sequence[tirx.Expr]) -> bool:
    """Return whether there are columns where conditions hold that may contradict each other."""
    for column in range(written.counts[-1]):
        here = [(written.column, tirx.const(column, "int32"))]
        held = written.simplify.simplify(substituted(tirx.all(*conditions), here))
        if not isinstance(held, tirx.IntImm) or int(held):
            return True
    return False


def _is_linear(comparison: tirx.Expr, lane: tirx.Var) -> bool:
    """Return whether both sides grow or shrink evenly from lane to lane."""
    if isinstance(comparison, tirx.IntImm):
        return True
    if not isinstance(comparison, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return False
    return all(
        len(sym.detect_linear_equation(side, [lane])) for side in (comparison.a, comparison.b)
    )


def _store(conv: Windows, written: Written, known: Known, accumulators: Any) -> None:
    """Store the epilogue of the accumulators."""
    tile, last = conv.sub_group, tirx.const(conv.sub_group.size - 1, "int32")
    for line in range(tile.lines):
        for row in range(tile.channels):
            total = accumulators[line * tile.channels + row]
            target, offset, value, alike, own = written.result(line, row, total)
            first = substituted(offset, [(written.lane, tirx.const(0, "int32"))])
            whole = written.needed([substituted(c, [(written.lane, last)]) for c in own])
            blocks = _steps_by_one(offset, written.lane) and _is_aligned(written, first)
            blocks = blocks and (not whole or _may_hold(written, whole))
            at, value = substituted(offset, known), substituted(value, known)
            with _when(alike, known):
                if not blocks:
                    with _when(own, known):
                        target[at] = value
                    continue
                if not whole:
                    block_write(target, substituted(first, known), value)
                    continue
                with T.If(substituted(tirx.all(*whole), known)):
                    with T.Then():
                        block_write(target, substituted(first, known), value)
                    with T.Else(), _when(own, known):
                        target[at] = value


def _when(conditions: Sequence[tirx.Expr], known: Known) -> Any:
    return when(substituted(tirx.all(*conditions), known)) if conditions else nullcontext()


def _steps_by_one(offset: tirx.Expr, lane: tirx.Var) -> bool:
    return coefficient(offset, lane) == 1


def _is_aligned(written: Written, offset: tirx.Expr) -> bool:
    found = written.simplify.modular_set(offset)
    return int(found.coeff) % _WRITE_ALIGNMENT == 0 and int(found.base) % _WRITE_ALIGNMENT == 0
