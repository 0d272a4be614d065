"""Recurrent layers written out step by step: some kernels for each step.

A sequence that is shorter than others in its batch keeps its state after its end, so that the other
direction begins at its last element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import scalar
from tvm_edge.ops.recurrent_activations import Activation
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = ["MOST_STEPS", "Direction", "Products", "part_of", "unrolled"]

MOST_STEPS = 1024
"""Steps that are written out at most: several kernels each."""


def _matmul(bb: relax.BlockBuilder, x: relax.Expr, weights: relax.Expr) -> relax.Expr:
    return bb.emit(relax.op.matmul(x, weights))


Product = Callable[[relax.BlockBuilder, relax.Expr, relax.Expr], relax.Expr]


@dataclass(frozen=True)
class Products:
    """Products of one direction of an LSTM with its weights.

    Another converter gives them as the attribute ``products``, one for each direction.

    Attributes
    ----------
    of_input, of_state : callable
        ``(builder, rows, weights) -> product``; weights are ``(inputs, gates * hidden)``.
    bias_last : bool
        Whether both biases are added to the sum of both products.
    """

    of_input: Product = _matmul
    of_state: Product = _matmul
    bias_last: bool = False


@dataclass(frozen=True)
class Direction:
    """One direction of a layer.

    Attributes
    ----------
    kind : {"RNN", "GRU", "LSTM"}
    added : relax.Expr
        Products of the sequence with the weights, ``(steps, batch, gates · hidden)``.
    recurrence : relax.Expr
        Weights, ``(hidden, gates · hidden)``.
    bias : relax.Expr or None
        ``(gates · hidden,)``, which `added` lacks.
    products : Products
    peepholes : relax.Expr or None
        ``(3 · hidden,)``.
    activations : sequence of Activation
    hidden : int
    backwards : bool
        Whether the first step is the sequence's last.
    clip : float or None
        Bound of the operands of activations.
    linear_before_reset, input_forget : bool
        As ONNX's attributes.
    """

    kind: str
    added: relax.Expr
    recurrence: relax.Expr
    bias: relax.Expr | None
    products: Products
    peepholes: relax.Expr | None
    activations: Sequence[Activation]
    hidden: int
    backwards: bool
    clip: float | None
    linear_before_reset: bool
    input_forget: bool


def unrolled(
    bb: relax.BlockBuilder,
    direction: Direction,
    state: Sequence[relax.Expr],
    lengths: relax.Expr | None,
    steps: int,
) -> tuple[relax.Expr, Sequence[relax.Expr]]:
    """Write out all steps of one direction.

    Parameters
    ----------
    bb : relax.BlockBuilder
    direction : Direction
    state : sequence of relax.Expr
        The first states, ``(batch, hidden)``.
    lengths : relax.Expr or None
        Of each sequence, ``(batch,)``.
    steps : int

    Returns
    -------
    relax.Expr
        The results, ``(steps, batch, hidden)``.
    sequence of relax.Expr
        The last states.
    """
    cell = {"RNN": _simple, "GRU": _gru, "LSTM": _lstm}[direction.kind]
    nothing = scalar(0.0, direction.added)
    outputs: dict[int, relax.Expr] = {}
    if lengths is not None:
        lengths = bb.emit(relax.op.expand_dims(lengths, 1))
    for step in reversed(range(steps)) if direction.backwards else range(steps):
        item = part_of(bb, direction.added, step)
        after = [bb.emit(value) for value in cell(bb, direction, item, state)]
        outputs[step] = after[0]
        if lengths is not None:
            there = bb.emit(relax.op.less(relax.const(np.int32(step), "int32"), lengths))
            outputs[step] = bb.emit(relax.op.where(there, after[0], nothing))
            after = [
                bb.emit(relax.op.where(there, new, old))
                for new, old in zip(after, state, strict=True)
            ]
        state = after
    return bb.emit(relax.op.stack([outputs[step] for step in range(steps)], 0)), state


def part_of(bb: relax.BlockBuilder, value: relax.Expr, index: int) -> relax.Expr:
    """Return a part of a tensor along its first axis."""
    known = constant_of(value)
    if known is None:
        at = relax.const(np.int64(index), "int64")
        return bb.emit(relax.op.take(value, at, 0, mode="clip"))
    return relax.const(np.ascontiguousarray(known[index]), str(known.dtype))


def _simple(
    bb: relax.BlockBuilder, layer: Direction, item: relax.Expr, state: Sequence[relax.Expr]
) -> Sequence[relax.Expr]:
    total = _with_state(bb, layer, item, state[0])
    return [layer.activations[0](_clipped(layer, total))]


def _gru(
    bb: relax.BlockBuilder, layer: Direction, item: relax.Expr, state: Sequence[relax.Expr]
) -> Sequence[relax.Expr]:
    """Step a cell with gates in the order update, reset, hidden (Cho et al. 2014, as in ONNX)."""
    (before,) = state
    f, g = layer.activations
    first, second = [2 * layer.hidden], [layer.hidden]
    x_gates, x_hidden = _split(bb, item, first, 1)
    r_gates, r_hidden = _split(bb, layer.recurrence, first, 1)
    b_gates = b_hidden = None
    if layer.bias is not None:
        b_gates, b_hidden = _split(bb, layer.bias, first, 0)
    gates = bb.emit(relax.op.add(x_gates, _affine(bb, before, r_gates, b_gates)))
    gates = bb.emit(f(_clipped(layer, gates)))
    update, reset = _split(bb, gates, second, 1)
    if layer.linear_before_reset:
        inner = relax.op.multiply(reset, _affine(bb, before, r_hidden, b_hidden))
    else:
        inner = _affine(bb, bb.emit(relax.op.multiply(reset, before)), r_hidden, b_hidden)
    new = bb.emit(g(_clipped(layer, bb.emit(relax.op.add(x_hidden, inner)))))
    # (1 - z) · new + z · before
    return [relax.op.add(new, relax.op.multiply(update, relax.op.subtract(before, new)))]


def _lstm(
    bb: relax.BlockBuilder, layer: Direction, item: relax.Expr, state: Sequence[relax.Expr]
) -> Sequence[relax.Expr]:
    """Step a cell with gates in the order input, output, forget, cell."""
    hidden_before, cell_before = state
    f, g, h = layer.activations
    n = layer.hidden
    total = _with_state(bb, layer, item, hidden_before)
    i, o, forget, c = _split(bb, total, [n, 2 * n, 3 * n], 1)
    if layer.peepholes is not None:
        p_i, p_o, p_f = _split(bb, layer.peepholes, [n, 2 * n], 0)
        i = bb.emit(relax.op.add(i, relax.op.multiply(p_i, cell_before)))
        forget = bb.emit(relax.op.add(forget, relax.op.multiply(p_f, cell_before)))
    i = bb.emit(f(_clipped(layer, i)))
    if layer.input_forget:
        forget = bb.emit(relax.op.subtract(scalar(1.0, i), i))
    else:
        forget = bb.emit(f(_clipped(layer, forget)))
    new = relax.op.multiply(i, g(_clipped(layer, c)))
    cell = bb.emit(relax.op.add(relax.op.multiply(forget, cell_before), new))
    if layer.peepholes is not None:
        o = bb.emit(relax.op.add(o, relax.op.multiply(p_o, cell)))
    return [relax.op.multiply(f(_clipped(layer, o)), h(cell)), cell]


def _with_state(
    bb: relax.BlockBuilder, layer: Direction, item: relax.Expr, state: relax.Expr
) -> relax.Expr:
    if layer.products.bias_last:
        product = layer.products.of_state(bb, state, layer.recurrence)
        total, bias = bb.emit(relax.op.add(item, product)), layer.bias
        return total if bias is None else bb.emit(relax.op.add(total, bias))
    product = _affine(bb, state, layer.recurrence, layer.bias)
    return bb.emit(relax.op.add(item, product))


def _affine(
    bb: relax.BlockBuilder, x: relax.Expr, weights: relax.Expr, bias: relax.Expr | None
) -> relax.Expr:
    product = bb.emit(relax.op.matmul(x, weights))
    return product if bias is None else bb.emit(relax.op.add(product, bias))


def _clipped(layer: Direction, value: relax.Expr) -> relax.Expr:
    """Clip the operand of an activation, if the node says so."""
    return value if layer.clip is None else relax.op.clip(value, -layer.clip, layer.clip)


def _split(
    bb: relax.BlockBuilder, value: relax.Expr, at: Sequence[int], axis: int
) -> list[relax.Expr]:
    known = constant_of(value)
    if known is not None:
        parts = np.split(known, list(at), axis)
        return [relax.const(np.ascontiguousarray(p), str(p.dtype)) for p in parts]
    parts = bb.emit(relax.op.split(value, list(at), axis))
    return [bb.emit(relax.TupleGetItem(parts, i)) for i in range(len(at) + 1)]
