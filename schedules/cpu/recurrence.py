"""Recurrent layers on a CPU: all steps of a sequence of any length in one kernel.

A core has a sequence of the batch, in one direction. Its state stays in the core's cache, as do the
weights where they fit; a step is a product of the state with the weights, in tiles of vector
registers, and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import Kernel, function, hold, registers

__all__ = ["TILE", "Activation", "Recurrence", "parts_of", "recurrence"]

TILE = 32
"""Columns of the weights that are summed side by side."""

Activation = Callable[[tirx.Expr], tirx.Expr]


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


def parts_of(layer: Recurrence) -> list[int]:
    """Return the columns of the weights that a step multiplies one after the other.

    Weights are packed by parts: each is filled up with zeros to whole tiles, which are one after
    the other.
    """
    if layer.kind == "GRU" and not layer.linear_before_reset:
        return [2 * layer.hidden, layer.hidden]
    return [layer.gates * layer.hidden]


def recurrence(layer: Recurrence) -> Kernel:
    """Run a layer over sequences of any number and length.

    Inputs: the products of the sequence with the weights, ``(steps, batch, directions · gates ·
    hidden)``; packed recurrent weights, ``(directions, tiles, hidden, TILE)``; the recurrent bias,
    ``(directions, gates · hidden)``; peepholes, ``(directions, 3 · hidden)``; lengths, ``(batch,)``
    int32; the states, ``(directions, batch, hidden)``. Outputs: the results, ``(steps, directions,
    batch, hidden)``, and the last states.
    """
    steps, batch = tirx.Var("steps", "int64"), tirx.Var("batch", "int64")
    wide, kind = layer.gates * layer.hidden, layer.dtype
    tiles = sum(-(-columns // TILE) for columns in parts_of(layer))
    state = ([layer.directions, batch, layer.hidden], kind)
    inputs: list[Any] = [
        ([steps, batch, layer.directions * wide], kind),
        ([layer.directions, tiles, layer.hidden, TILE], kind),
        ([layer.directions, wide], kind),
    ]
    inputs += [([layer.directions, 3 * layer.hidden], kind)] * layer.has_peepholes
    inputs += [([batch], "int32")] * layer.has_lengths
    inputs += [state] * layer.states
    outputs = [([steps, layer.directions, batch, layer.hidden], kind), *[state] * layer.states]

    def body(added: Any, weights: Any, bias: Any, *rest: Any) -> None:
        more = list(rest)
        peepholes = more.pop(0) if layer.has_peepholes else None
        lengths = more.pop(0) if layer.has_lengths else None
        first, (result, *last) = more[: layer.states], more[layer.states :]
        # Directions have functions of their own: their loops are one after the other.
        for side in range(layer.directions):
            with T.parallel(0, batch) as row:
                cell = _Cell(layer, side, row, added, weights, bias, peepholes)
                for into, given in zip(cell.state, first, strict=True):
                    with T.serial(0, layer.hidden) as i:
                        into[i] = given[side, row, i]
                with T.serial(0, steps) as step:
                    at = steps - 1 - step if layer.backwards[side] else step
                    cell.step(at, result, lengths)
                for out, value in zip(last, cell.state, strict=True):
                    with T.serial(0, layer.hidden) as i:
                        out[side, row, i] = value[i]

    return function(inputs, outputs, body)


class _Cell:
    """The state of one sequence in one direction, and its statements."""

    def __init__(
        self,
        layer: Recurrence,
        side: int,
        row: tirx.Expr,
        added: Any,
        weights: Any,
        bias: Any,
        peepholes: Any,
    ) -> None:
        self.layer, self.side, self.row = layer, side, row
        self.added, self.weights, self.bias, self.peepholes = added, weights, bias, peepholes
        self.parts = [-(-columns // TILE) for columns in parts_of(layer)]
        self.state = [registers(layer.hidden, layer.dtype) for _ in range(layer.states)]
        self.products = registers(sum(self.parts) * TILE, layer.dtype)
        self.reset = registers(layer.hidden, layer.dtype) if len(self.parts) > 1 else None

    def step(self, at: tirx.Expr, result: Any, lengths: Any) -> None:
        """Make the next state, which is the result of the step `at`."""
        {"RNN": self._simple, "GRU": self._gru, "LSTM": self._lstm}[self.layer.kind](
            _Writer(self, at, result, lengths)
        )

    def multiply(self, values: Any, part: int) -> None:
        """Multiply a vector with a part of the weights."""
        first = sum(self.parts[:part])
        with T.serial(0, self.parts[part]) as tile:
            sums = registers(TILE, self.layer.dtype)
            with T.vectorized(0, TILE) as lane:
                sums[lane] = tirx.const(0, self.layer.dtype)
            with T.serial(0, self.layer.hidden) as k, T.vectorized(0, TILE) as lane:
                sums[lane] = sums[lane] + values[k] * self.weights[self.side, first + tile, k, lane]
            with T.vectorized(0, TILE) as lane:
                self.products[(first + tile) * TILE + lane] = sums[lane]

    def gate(self, number: int, unit: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        """Return the operand of a gate's activation, before peepholes."""
        return self.of_input(number, unit, at) + self.of_state(number, unit)

    def of_input(self, number: int, unit: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        """Return the product of a step's input with a gate's weights."""
        layer = self.layer
        column = (self.side * layer.gates + number) * layer.hidden + unit
        return self.added[at, self.row, column]

    def of_state(self, number: int, unit: tirx.Expr) -> tirx.Expr:
        """Return the product of the state with a gate's weights, and the bias."""
        hidden = self.layer.hidden
        skipped = 0
        if len(self.parts) > 1 and number == 2:
            skipped = self.parts[0] * TILE - 2 * hidden  # the zeros that fill up the first part
        product = self.products[number * hidden + skipped + unit]
        return product + self.bias[self.side, number * hidden + unit]

    def activate(self, number: int, value: tirx.Expr) -> tirx.Expr:
        """Apply an activation to a clipped operand."""
        clip = self.layer.clip
        if clip is not None:
            bound = tirx.const(clip, self.layer.dtype)
            value = tirx.max(tirx.min(value, bound), -bound)
        return hold(self.layer.activations[self.side][number](hold(value)))

    def _simple(self, write: _Writer) -> None:
        self.multiply(self.state[0], 0)
        with T.serial(0, self.layer.hidden) as unit:
            write(unit, [self.activate(0, self.gate(0, unit, write.at))])

    def _gru(self, write: _Writer) -> None:
        (before,) = self.state
        self.multiply(before, 0)
        if self.reset is not None:
            with T.serial(0, self.layer.hidden) as unit:
                self.reset[unit] = before[unit] * self.activate(0, self.gate(1, unit, write.at))
            self.multiply(self.reset, 1)
        with T.serial(0, self.layer.hidden) as unit:
            update = self.activate(0, self.gate(0, unit, write.at))
            inner = self.of_state(2, unit)
            if self.reset is None:
                inner = inner * self.activate(0, self.gate(1, unit, write.at))
            new = self.activate(1, self.of_input(2, unit, write.at) + inner)
            # (1 - z) · new + z · before
            write(unit, [new + update * (before[unit] - new)])

    def _lstm(self, write: _Writer) -> None:
        """Gates in the order input, output, forget, cell."""
        hidden_before, cell_before = self.state
        hidden = self.layer.hidden
        self.multiply(hidden_before, 0)
        with T.serial(0, hidden) as unit:
            old = hold(cell_before[unit])

            def gate(number: int, state: tirx.Expr, unit: tirx.Expr = unit) -> tirx.Expr:
                value = self.gate(number, unit, write.at)
                if self.peepholes is None:
                    return value
                return value + self.peepholes[self.side, number * hidden + unit] * state

            into = self.activate(0, gate(0, old))
            if self.layer.input_forget:
                kept = tirx.const(1, self.layer.dtype) - into
            else:
                kept = self.activate(0, gate(2, old))
            new = self.activate(1, self.gate(3, unit, write.at))
            cell = hold(kept * old + into * new)
            out = self.activate(0, gate(1, cell))
            # The cell's own state is an operand of the last activation, which nothing clips.
            shown = hold(self.layer.activations[self.side][2](cell))
            write(unit, [out * shown, cell])


@dataclass
class _Writer:
    """Write a unit's new state, and its result; a sequence that has ended keeps its state."""

    cell: _Cell
    at: tirx.Expr
    result: Any
    lengths: Any

    def __call__(self, unit: tirx.Expr, made: Sequence[tirx.Expr]) -> None:
        cell, values = self.cell, [hold(value) for value in made]
        shown = values[0]
        if self.lengths is not None:
            there = self.at < self.lengths[cell.row].astype("int64")
            shown = tirx.Select(there, shown, tirx.const(0, cell.layer.dtype))
            values = [
                hold(tirx.Select(there, new, old[unit]))
                for new, old in zip(values, cell.state, strict=True)
            ]
        self.result[self.at, cell.side, cell.row, unit] = shown
        for old, new in zip(cell.state, values, strict=True):
            old[unit] = new
