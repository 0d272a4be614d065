"""Recurrent layers on a CPU: all steps of a sequence of any length in one kernel.

A core has some sequences of the batch, in one direction. Their state stays in the core's cache, as
do the weights where they fit. With fewer sequences than cores, and weights that take a core longer
than others need to wake up, the cores divide the units of a step instead.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu.recurrent_cell import Cell, Operands, Recurrence, parts_of
from tvm_edge.schedules.emit import Kernel, either, function, hold

__all__ = ["recurrence"]

_ROWS = 4  # sequences at most that share what is loaded of the weights
_MIN_TO_SPREAD = 1 << 17  # weights of a step


def recurrence(layer: Recurrence, batch: int | None, spec: DeviceSpec) -> Kernel:
    """Run a layer over sequences of any length.

    Inputs: the products of the sequence with the weights, ``(steps, batch, directions · gates ·
    hidden)``; packed weights of each part, ``(directions, tiles, hidden, gates · units)``;
    the recurrent bias, ``(directions, gates · hidden)``; peepholes, ``(directions, 3 · hidden)``;
    lengths, ``(batch,)`` int32; the states, ``(directions, batch, hidden)``. Outputs: the results,
    ``(steps, directions, batch, hidden)``, and the last states.

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
    wide, kind, parts = layer.gates * layer.hidden, layer.dtype, parts_of(layer, spec)
    state = ([layer.directions, count, layer.hidden], kind)
    inputs: list[Any] = [([steps, count, layer.directions * wide], kind)]
    inputs += [
        ([layer.directions, part.tiles, layer.hidden, len(part.gates) * part.units], kind)
        for part in parts
    ]
    inputs += [([layer.directions, wide], kind)]
    inputs += [([layer.directions, 3 * layer.hidden], kind)] * layer.has_peepholes
    inputs += [([count], "int32")] * layer.has_lengths
    inputs += [state] * layer.states
    outputs = [([steps, layer.directions, count, layer.hidden], kind), *[state] * layer.states]
    vectors = len(parts[0].gates) * parts[0].units // spec.lanes()
    rows = max(1, min(_ROWS, spec.vector_registers // vectors - 2))
    if batch is not None:  # a task for each core
        rows = max(1, min(rows, batch * layer.directions // spec.cores))
    groups = (count + rows - 1) // rows
    few = batch is not None and layer.directions * groups < spec.cores
    spread = few and wide * layer.hidden >= _MIN_TO_SPREAD

    def body(added: Any, *rest: Any) -> None:
        more = list(rest)
        weights = [more.pop(0) for _ in parts]
        bias = more.pop(0)
        peepholes = more.pop(0) if layer.has_peepholes else None
        lengths = more.pop(0) if layer.has_lengths else None
        first, (result, *last) = more[: layer.states], more[layer.states :]
        given = Operands(added, weights, bias, peepholes, lengths, first, result, last)

        def cell(side: int, start: Any, number: int) -> None:
            Cell(layer, given, side, start, number, spec, spread=spread).run(steps)

        def sequences(side: int, start: Any) -> None:
            def single() -> None:
                with T.serial(0, count - start) as row:
                    cell(side, hold(start + row), 1)

            if batch is not None and batch % rows == 0:
                cell(side, start, rows)
            elif rows == 1:
                single()
            else:
                either(start + rows <= count, lambda: cell(side, start, rows), single)

        # Directions have functions of their own.
        with (T.serial if spread else T.parallel)(0, layer.directions * groups) as task:
            start = hold(task % groups * rows)
            if layer.directions == 1:
                sequences(0, start)
            else:
                either(task < groups, lambda: sequences(0, start), lambda: sequences(1, start))

    return function(inputs, outputs, body)
