"""Cells of recurrent layers: statements of a step, for some of a cell's units side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import either, hold, registers

__all__ = ["Activation", "Cell", "Operands", "Part", "Recurrence", "parts_of"]

_VECTORS = 4
"""Vectors of a tile: so many accumulators keep a core busy that has a single sequence."""

Activation = Callable[[Any], Any]
Lanes = Callable[[Any], Any]
"""Gives the value of a lane."""


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


@dataclass(frozen=True)
class Part:
    """Gates whose products with the weights a step calculates at once.

    Attributes
    ----------
    gates : tuple of int
        Those whose weights these are.
    units : int
        Of a tile: a tile of the weights has the columns of so many units, gate after gate.
    tiles : int
    """

    gates: tuple[int, ...]
    units: int
    tiles: int


def parts_of(layer: Recurrence, spec: DeviceSpec) -> list[Part]:
    """Return the parts of a step, one after the other."""
    gates: list[tuple[int, ...]] = [tuple(range(layer.gates))]
    if layer.kind == "GRU" and not layer.linear_before_reset:
        gates = [(0, 1), (2,)]
    lanes, made = spec.lanes(), []
    for own in gates:
        most = max(1, _VECTORS // len(own))
        units = lanes * min(most, -(-layer.hidden // lanes))
        made.append(Part(own, units, -(-layer.hidden // units)))
    return made


@dataclass(frozen=True)
class Operands:
    """Buffers of the kernel; of the weights one for each part."""

    added: Any
    weights: Sequence[Any]
    bias: Any
    peepholes: Any
    lengths: Any
    first: Sequence[Any]
    result: Any
    last: Sequence[Any]


class Cell:
    """The state of some sequences in one direction.

    Parameters
    ----------
    layer : Recurrence
    given : Operands
    side : int
        The direction.
    start : tirx.Expr
        Number of the first sequence.
    rows : int
        How many there are.
    spec : DeviceSpec
    spread : bool
        Whether the tiles of a step are divided between the cores.
    """

    def __init__(
        self,
        layer: Recurrence,
        given: Operands,
        side: int,
        start: Any,
        rows: int,
        spec: DeviceSpec,
        *,
        spread: bool = False,
    ) -> None:
        self.layer, self.given, self.side, self.start, self.rows = layer, given, side, start, rows
        self.parts, self._lanes, self._spread = parts_of(layer, spec), spec.lanes(), spread
        self.state = [self._per_unit() for _ in range(layer.states)]
        self.after = [self._per_unit() for _ in range(layer.states)]

    def _per_unit(self) -> Any:
        return registers(self.rows * self.layer.hidden, self.layer.dtype)

    def run(self, steps: Any) -> None:
        """Run all steps, from the first states to the last ones."""
        hidden, given = self.layer.hidden, self.given
        with T.serial(0, self.rows) as row:
            for into, value in zip(self.state, given.first, strict=True):
                for unit in _vectors(hidden, self._lanes):
                    into[row * hidden + unit] = value[self.side, self.start + row, unit]
        make = {"RNN": self._simple, "GRU": self._gru, "LSTM": self._lstm}[self.layer.kind]
        with T.serial(0, steps) as step:
            make(hold(steps - 1 - step) if self.layer.backwards[self.side] else step)
            for into, value in zip(self.state, self.after, strict=True):
                for at in _vectors(self.rows * hidden, self._lanes):
                    into[at] = value[at]
        with T.serial(0, self.rows) as row:
            for out, value in zip(given.last, self.state, strict=True):
                for unit in _vectors(hidden, self._lanes):
                    out[self.side, self.start + row, unit] = value[row * hidden + unit]

    def _tiles(self, number: int, values: Any, at: Any, make: Callable[[_Units], None]) -> None:
        """Multiply vectors with a part of the weights; write what follows of it."""
        part, hidden = self.parts[number], self.layer.hidden

        def tile(index: Any, width: int) -> None:
            columns = len(part.gates) * part.units
            products = registers(self.rows * columns, self.layer.dtype)
            self._multiply(self.given.weights[number], index, values, products, columns)
            with T.serial(0, self.rows) as row:
                make(_Units(self, part, products, at, row, hold(index * part.units), width))

        rest = hidden % part.units
        with (T.parallel if self._spread else T.serial)(0, part.tiles) as index:
            if not rest or part.tiles == 1:
                tile(index, rest or part.units)
            else:
                last = index == part.tiles - 1
                either(last, lambda: tile(index, rest), lambda: tile(index, part.units))

    def _multiply(self, weights: Any, index: Any, values: Any, products: Any, wide: int) -> None:
        kind, hidden, lanes = self.layer.dtype, self.layer.hidden, self._lanes
        # A vector each: LLVM spills what is as long as three of them.
        places = [(row, first) for row in range(self.rows) for first in range(0, wide, lanes)]
        sums = [registers(lanes, kind) for _ in places]
        for own in sums:
            with T.vectorized(0, lanes) as lane:
                own[lane] = tirx.const(0, kind)
        with T.serial(0, hidden) as k:
            for (row, first), own in zip(places, sums, strict=True):
                with T.vectorized(0, lanes) as lane:
                    weight = weights[self.side, index, k, first + lane]
                    own[lane] = own[lane] + values[row * hidden + k] * weight
        for (row, first), own in zip(places, sums, strict=True):
            with T.vectorized(0, lanes) as lane:
                products[row * wide + first + lane] = own[lane]

    def _simple(self, at: Any) -> None:
        self._tiles(0, self.state[0], at, lambda own: own.write([own.activate(0, own.gate(0))]))

    def _gru(self, at: Any) -> None:
        """Gates in the order update, reset, hidden (Cho et al. 2014, as in ONNX)."""

        def whole(own: _Units) -> None:
            update, reset = (own.activate(0, own.gate(number)) for number in range(2))
            inner = own.product(own.of_state(2), reset)
            new = own.activate(1, own.sum(own.of_input(2), inner))
            own.write([own.mean(update, own.before(0), new)])

        if len(self.parts) == 1:
            self._tiles(0, self.state[0], at, whole)
            return
        update, reset = self._per_unit(), self._per_unit()

        def gates(own: _Units) -> None:
            own.store(update, own.activate(0, own.gate(0)))
            own.store(reset, own.product(own.before(0), own.activate(0, own.gate(1))))

        def rest(own: _Units) -> None:
            new = own.activate(1, own.gate(2))
            own.write([own.mean(own.of(update), own.before(0), new)])

        self._tiles(0, self.state[0], at, gates)
        self._tiles(1, reset, at, rest)

    def _lstm(self, at: Any) -> None:
        """Gates in the order input, output, forget, cell."""

        def units(own: _Units) -> None:
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
            own.write([own.product(out, own.apply(2, cell)), cell])

        self._tiles(0, self.state[0], at, units)


def _vectors(length: int, lanes: int) -> Iterator[Any]:
    """Write vectorised loops over a length."""
    whole, rest = divmod(length, lanes)
    if whole:
        with T.serial(0, whole) as piece, T.vectorized(0, lanes) as lane:
            yield piece * lanes + lane
    if rest:
        with T.vectorized(0, rest) as lane:
            yield whole * lanes + lane


class _Units:
    """Statements for some units of one sequence, side by side."""

    def __init__(
        self, cell: Cell, part: Part, products: Any, at: Any, row: Any, first: Any, width: int
    ) -> None:
        self.cell, self.part, self.products = cell, part, products
        self.at, self.row, self.first, self.width = at, row, first, width

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

    def of(self, stored: Any) -> Lanes:
        """Return what was stored for the units."""
        start = self.row * self.cell.layer.hidden + self.first
        return lambda lane: stored[start + lane]

    def before(self, number: int) -> Lanes:
        """Return a state before the step."""
        return self.of(self.cell.state[number])

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
        cell, part = self.cell, self.part
        columns = len(part.gates) * part.units
        place = self.row * columns + part.gates.index(number) * part.units
        column = number * cell.layer.hidden + self.first
        bias = cell.given.bias
        return lambda lane: self.products[place + lane] + bias[cell.side, column + lane]

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
            self.store(cell.after[number], new)
