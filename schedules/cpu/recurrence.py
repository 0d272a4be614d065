"""Recurrent layers on a CPU: all steps of a sequence of any length in one kernel.

A core has some sequences of the batch, in one direction. Their state stays in the core's cache, as
do the weights where they fit; a step is a product of the states with the weights, in tiles of
vector registers, and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, either, function, hold, registers

__all__ = ["Activation", "Recurrence", "parts_of", "recurrence", "tile_width"]

_VECTORS = 4
"""Vectors of a tile: so many accumulators keep a core busy that has a single sequence."""

_ROWS = 4  # sequences at most that share what is loaded of the weights

Activation = Callable[[Any], Any]
Lanes = Callable[[Any], Any]
"""Gives the value of a lane: of the units of a cell some are calculated side by side."""


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer.

    Attributes
    ----------
    kind : {"RNN", "GRU", "LSTM"}
    hidden, directions : int
    backwards : tuple of bool
        For each direction, whether its first step is the sequence's last.
    activations : tuple of tuple of callable
        Those of each direction, in ONNX's order.
    clip : float or None
        Bound of the operands of activations.
    linear_before_reset, input_forget : bool
        As ONNX's attributes.
    has_peepholes, has_lengths : bool
        Whether the kernel takes those operands.
    dtype : str
    """

    kind: str
    hidden: int
    directions: int
    backwards: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool
    has_peepholes: bool
    has_lengths: bool
    dtype: str

    @property
    def gates(self) -> int:
        """Number of gates of a cell, each ``hidden`` rows of weights."""
        return {"RNN": 1, "GRU": 3, "LSTM": 4}[self.kind]

    @property
    def states(self) -> int:
        """Number of tensors that a step hands on to the next one."""
        return 2 if self.kind == "LSTM" else 1


def tile_width(spec: DeviceSpec) -> int:
    """Return the columns of the weights that are multiplied side by side."""
    return _VECTORS * spec.lanes()


def parts_of(layer: Recurrence) -> list[int]:
    """Return the columns of the weights that a step multiplies one after the other.

    Weights are packed by parts: each is filled up with zeros to whole tiles, which are one after
    the other.
    """
    if layer.kind == "GRU" and not layer.linear_before_reset:
        return [2 * layer.hidden, layer.hidden]
    return [layer.gates * layer.hidden]


def recurrence(layer: Recurrence, batch: int | None, spec: DeviceSpec) -> Kernel:
    """Run a layer over sequences of any length.

    Inputs: the products of the sequence with the weights, ``(steps, batch, directions · gates ·
    hidden)``; packed recurrent weights, ``(directions, tiles, hidden, tile)``; the recurrent bias,
    ``(directions, gates · hidden)``; peepholes, ``(directions, 3 · hidden)``; lengths, ``(batch,)``
    int32; the states, ``(directions, batch, hidden)``. Outputs: the results, ``(steps, directions,
    batch, hidden)``, and the last states.

    Parameters
    ----------
    layer : Recurrence
    batch : int or None
        Number of sequences; ``None`` where only the run tells it.
    spec : DeviceSpec
        The CPU: its vector registers decide the tile.
    """
    steps = tirx.Var("steps", "int64")
    count: Any = tirx.Var("batch", "int64") if batch is None else batch
    wide, kind, tile = layer.gates * layer.hidden, layer.dtype, tile_width(spec)
    tiles = sum(-(-columns // tile) for columns in parts_of(layer))
    state = ([layer.directions, count, layer.hidden], kind)
    inputs: list[Any] = [
        ([steps, count, layer.directions * wide], kind),
        ([layer.directions, tiles, layer.hidden, tile], kind),
        ([layer.directions, wide], kind),
    ]
    inputs += [([layer.directions, 3 * layer.hidden], kind)] * layer.has_peepholes
    inputs += [([count], "int32")] * layer.has_lengths
    inputs += [state] * layer.states
    outputs = [([steps, layer.directions, count, layer.hidden], kind), *[state] * layer.states]
    rows = max(1, min(_ROWS, spec.vector_registers // _VECTORS - 2, batch or _ROWS))
    groups = (count + rows - 1) // rows

    def body(added: Any, weights: Any, bias: Any, *rest: Any) -> None:
        more = list(rest)
        peepholes = more.pop(0) if layer.has_peepholes else None
        lengths = more.pop(0) if layer.has_lengths else None
        first, (result, *last) = more[: layer.states], more[layer.states :]
        given = _Operands(added, weights, bias, peepholes, lengths, first, result, last)

        def sequences(side: int, start: Any) -> None:
            def some(number: int) -> Callable[[], None]:
                return lambda: _Cell(layer, given, side, start, number, spec).run(steps)

            if batch is not None and batch % rows == 0:
                some(rows)()
                return

            def few() -> None:
                with T.serial(0, count - start) as row:
                    _Cell(layer, given, side, hold(start + row), 1, spec).run(steps)

            either(start + rows <= count, some(rows), few) if rows > 1 else few()

        # Directions have functions of their own.
        with T.parallel(0, layer.directions * groups) as task:
            start = hold(task % groups * rows)
            if layer.directions == 1:
                sequences(0, start)
            else:
                either(task < groups, lambda: sequences(0, start), lambda: sequences(1, start))

    return function(inputs, outputs, body)


@dataclass(frozen=True)
class _Operands:
    """Buffers of the kernel."""

    added: Any
    weights: Any
    bias: Any
    peepholes: Any
    lengths: Any
    first: Sequence[Any]
    result: Any
    last: Sequence[Any]


class _Cell:
    """The state of some sequences in one direction, and its statements."""

    def __init__(
        self,
        layer: Recurrence,
        given: _Operands,
        side: int,
        start: Any,
        rows: int,
        spec: DeviceSpec,
    ) -> None:
        self.layer, self.given, self.side, self.start, self.rows = layer, given, side, start, rows
        self.lanes, self.tile = spec.lanes(), tile_width(spec)
        self.parts = [-(-columns // self.tile) for columns in parts_of(layer)]
        self.state = [registers(rows * layer.hidden, layer.dtype) for _ in range(layer.states)]
        self.columns = sum(self.parts) * self.tile
        self.products = registers(rows * self.columns, layer.dtype)
        resets = len(self.parts) > 1
        self.reset = registers(rows * layer.hidden, layer.dtype) if resets else None

    def run(self, steps: Any) -> None:
        """Run all steps, from the first states to the last ones."""
        hidden, given = self.layer.hidden, self.given
        with T.serial(0, self.rows) as row:
            for into, value in zip(self.state, given.first, strict=True):
                for unit in self._units():
                    into[row * hidden + unit] = value[self.side, self.start + row, unit]
        make = {"RNN": self._simple, "GRU": self._gru, "LSTM": self._lstm}[self.layer.kind]
        with T.serial(0, steps) as step:
            make(hold(steps - 1 - step) if self.layer.backwards[self.side] else step)
        with T.serial(0, self.rows) as row:
            for out, value in zip(given.last, self.state, strict=True):
                for unit in self._units():
                    out[self.side, self.start + row, unit] = value[row * hidden + unit]

    def _pieces(self) -> Iterator[tuple[Any, int]]:
        """Write loops over pieces of the units: first one, and number."""
        whole, rest = divmod(self.layer.hidden, self.lanes)
        if whole:
            with T.serial(0, whole) as piece:
                yield piece * self.lanes, self.lanes
        if rest:
            yield whole * self.lanes, rest

    def _units(self) -> Iterator[Any]:
        """Write vectorised loops over all units."""
        for first, width in self._pieces():
            with T.vectorized(0, width) as lane:
                yield first + lane

    def _multiply(self, values: Any, part: int) -> None:
        """Multiply vectors with a part of the weights."""
        first, kind, tile = sum(self.parts[:part]), self.layer.dtype, self.tile
        with T.serial(0, self.parts[part]) as number:
            sums = [registers(tile, kind) for _ in range(self.rows)]
            for own in sums:
                with T.vectorized(0, tile) as lane:
                    own[lane] = tirx.const(0, kind)
            with T.serial(0, self.layer.hidden) as k:
                for row, own in enumerate(sums):
                    with T.vectorized(0, tile) as lane:
                        weight = self.given.weights[self.side, first + number, k, lane]
                        own[lane] = own[lane] + values[row * self.layer.hidden + k] * weight
            for row, own in enumerate(sums):
                with T.vectorized(0, tile) as lane:
                    at = row * self.columns + (first + number) * tile + lane
                    self.products[at] = own[lane]

    def _cells(self, at: Any) -> Iterator[_Units]:
        """Write loops over the units of all sequences, some at a time."""
        with T.serial(0, self.rows) as row:
            for first, width in self._pieces():
                yield _Units(self, at, row, first, width)

    def _simple(self, at: Any) -> None:
        self._multiply(self.state[0], 0)
        for own in self._cells(at):
            own.write([own.activate(0, own.gate(0))])

    def _gru(self, at: Any) -> None:
        """Gates in the order update, reset, hidden (Cho et al. 2014, as in ONNX)."""
        self._multiply(self.state[0], 0)
        if self.reset is not None:
            for own in self._cells(at):
                own.store(self.reset, own.product(own.before(0), own.activate(0, own.gate(1))))
            self._multiply(self.reset, 1)
        for own in self._cells(at):
            update, before, inner = own.activate(0, own.gate(0)), own.before(0), own.of_state(2)
            if self.reset is None:
                inner = own.product(inner, own.activate(0, own.gate(1)))
            new = own.activate(1, own.sum(own.of_input(2), inner))
            own.write([own.mean(update, before, new)])

    def _lstm(self, at: Any) -> None:
        """Gates in the order input, output, forget, cell."""
        self._multiply(self.state[0], 0)
        for own in self._cells(at):
            old = own.before(1)
            into = own.activate(0, own.sum(own.gate(0), own.peephole(0, old)))
            if self.layer.input_forget:
                kept = own.rest(into)
            else:
                kept = own.activate(0, own.sum(own.gate(2), own.peephole(2, old)))
            new = own.activate(1, own.gate(3))
            cell = own.hold(own.sum(own.product(kept, old), own.product(into, new)))
            out = own.activate(0, own.sum(own.gate(1), own.peephole(1, cell)))
            # The cell's own state is an operand of the last activation, which nothing clips.
            shown = own.apply(2, cell)
            own.write([own.product(out, shown), cell])


class _Units:
    """Statements for some units of one sequence, side by side."""

    def __init__(self, cell: _Cell, at: Any, row: Any, first: Any, width: int) -> None:
        self.cell, self.at, self.row, self.first, self.width = cell, at, row, first, width

    def store(self, into: Any, value: Lanes) -> None:
        """Write a value of each unit of the sequence."""
        start = self.row * self.cell.layer.hidden + self.first
        with T.vectorized(0, self.width) as lane:
            into[start + lane] = value(lane)

    def hold(self, value: Lanes) -> Lanes:
        """`value`, calculated here and once."""
        held = registers(self.width, self.cell.layer.dtype)
        with T.vectorized(0, self.width) as lane:
            held[lane] = value(lane)
        return lambda lane: held[lane]

    def sum(self, *values: Lanes | None) -> Lanes:
        """Add what there is."""
        there = [value for value in values if value is not None]
        return lambda lane: reduce(add, (value(lane) for value in there))

    def product(self, a: Lanes, b: Lanes) -> Lanes:
        """Multiply two values."""
        return lambda lane: a(lane) * b(lane)

    def mean(self, weight: Lanes, a: Lanes, b: Lanes) -> Lanes:
        """Return ``weight · a + (1 - weight) · b``."""
        return lambda lane: b(lane) + weight(lane) * (a(lane) - b(lane))

    def rest(self, value: Lanes) -> Lanes:
        """Return what a value lacks to 1."""
        one = tirx.const(1, self.cell.layer.dtype)
        return lambda lane: one - value(lane)

    def before(self, number: int) -> Lanes:
        """Return a state before the step."""
        cell = self.cell
        return lambda lane: cell.state[number][self.row * cell.layer.hidden + self.first + lane]

    def gate(self, number: int) -> Lanes:
        """Return the operand of a gate's activation, before peepholes."""
        return self.sum(self.of_input(number), self.of_state(number))

    def of_input(self, number: int) -> Lanes:
        """Return the product of a step's input with a gate's weights."""
        layer, given = self.cell.layer, self.cell.given
        column = (self.cell.side * layer.gates + number) * layer.hidden + self.first
        return lambda lane: given.added[self.at, self.cell.start + self.row, column + lane]

    def of_state(self, number: int) -> Lanes:
        """Return the product of the state with a gate's weights, and the bias."""
        cell = self.cell
        column = number * cell.layer.hidden + self.first
        place = self.row * cell.columns + column
        if len(cell.parts) > 1 and number == 2:  # after the zeros that fill up the first part
            place += cell.parts[0] * cell.tile - 2 * cell.layer.hidden

        def value(lane: Any) -> Any:
            return cell.products[place + lane] + cell.given.bias[cell.side, column + lane]

        return value

    def peephole(self, number: int, state: Lanes) -> Lanes | None:
        """Return a state times its weights, if there are some."""
        cell, weights = self.cell, self.cell.given.peepholes
        column = number * cell.layer.hidden + self.first
        if weights is None:
            return None
        return lambda lane: weights[cell.side, column + lane] * state(lane)

    def activate(self, number: int, value: Lanes) -> Lanes:
        """Apply an activation to a clipped operand."""
        clip = self.cell.layer.clip
        if clip is None:
            return self.apply(number, value)
        bound = tirx.const(clip, self.cell.layer.dtype)
        return self.apply(number, lambda lane: tirx.max(tirx.min(value(lane), bound), -bound))

    def apply(self, number: int, value: Lanes) -> Lanes:
        """Apply an activation."""
        held, function = self.hold(value), self.cell.layer.activations[self.cell.side][number]
        return self.hold(lambda lane: function(held(lane)))

    def write(self, made: Sequence[Lanes]) -> None:
        """Write the new states, and the result; a sequence that has ended keeps its state."""
        cell, values = self.cell, [self.hold(value) for value in made]
        shown, lengths = values[0], cell.given.lengths
        if lengths is not None:
            there = self.at < lengths[cell.start + self.row].astype("int64")
            nothing = tirx.const(0, cell.layer.dtype)

            def chosen(new: Lanes, old: Lanes) -> Lanes:
                return self.hold(lambda lane: tirx.Select(there, new(lane), old(lane)))

            shown = chosen(values[0], lambda lane: nothing)
            values = [chosen(new, self.before(number)) for number, new in enumerate(values)]
        with T.vectorized(0, self.width) as lane:
            place = (self.at, cell.side, cell.start + self.row, self.first + lane)
            cell.given.result[place] = shown(lane)
        for number, new in enumerate(values):
            self.store(cell.state[number], new)
