"""Recurrent layers RNN, GRU and LSTM, written out step by step where both lengths are known.

The inputs of all steps enter the gates by one product of matrices; a step adds a product with the
state before it. A sequence that is shorter than others in its batch keeps its state after its end,
so that the other direction begins at its last element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import (
    Attributes,
    Converter,
    num_outputs,
    operand,
    scalar,
    text,
)
from tvm_edge.ops.elements import ensure
from tvm_edge.ops.flops import Operation, elements, known
from tvm_edge.ops.recurrence import packed, recurrent_layer
from tvm_edge.ops.recurrent_activations import Activation, activations_of, with_parameters
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of, static_shape

__all__ = ["Products", "recurrent_flops"]

# Steps: several kernels each.
_MOST_STEPS = 1024


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
class _Direction:
    """Weights of one direction of a layer.

    Shapes: `recurrence` ``(hidden, gates·hidden)``; `recurrent_bias` ``(gates·hidden,)``, which the
    product with the inputs has not added; `peepholes` ``(3·hidden,)``.
    """

    recurrence: relax.Expr
    recurrent_bias: relax.Expr | None
    products: Products
    peepholes: relax.Expr | None
    activations: Sequence[Activation]
    hidden: int
    attrs: Attributes


# Builder, direction, the input's product with the gates, the states before → the states after.
Cell = Callable[
    [relax.BlockBuilder, _Direction, relax.Expr, Sequence[relax.Expr]], Sequence[relax.Expr]
]


def _layer(kind: str, gates: int, defaults: Sequence[str], cell: Cell, states: int) -> Converter:
    """Make a converter for cells of so many gates and states."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr:
        layout = int(attrs.get("layout", 0))
        x = inputs[0]
        initial = [operand(inputs, 5), operand(inputs, 6)][:states]
        if layout:
            x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
            initial = [
                None if s is None else bb.emit(relax.op.permute_dims(s, [1, 0, 2])) for s in initial
            ]
        shape, sides = static_shape(x.ty), text(attrs, "direction", "forward")
        recurrence = static_shape(inputs[2].ty)
        if recurrence is None:
            raise NotImplementedError("a recurrent layer with weights of open dimensions")
        products: Sequence[Products] | None = attrs.get("products")
        names = [
            name.decode() if isinstance(name, bytes) else name
            for name in attrs.get("activations", list(defaults) * recurrence[0])
        ]
        if shape is None:
            if products is not None:
                raise NotImplementedError(
                    "a recurrent layer with int8 weights and an open batch or number of steps; "
                    "fix both with input_shapes"
                )
            results = _of_open_lengths(bb, kind, x, inputs, initial, names, attrs)
            return _ordered(bb, results[0], results[1:], layout, attrs)
        if shape[0] > _MOST_STEPS:
            raise NotImplementedError(f"a recurrent layer of more than {_MOST_STEPS} steps")
        hidden, dtype = recurrence[2], str(x.ty.dtype)
        activations = activations_of(names, attrs, dtype)
        rows, last = [], []
        for side in range(recurrence[0]):
            weights = _transposed(bb, _part(bb, inputs[1], side))
            recurrent = _transposed(bb, _part(bb, inputs[2], side))
            product = Products() if products is None else products[side]
            added = product.of_input(bb, x, weights)
            bias, recurrent_bias = _part(bb, operand(inputs, 3), side), None
            if bias is not None:
                of_input, recurrent_bias = _halves(bb, bias, gates * hidden)
                if product.bias_last:
                    recurrent_bias = _added(bb, of_input, recurrent_bias)
                else:
                    added = bb.emit(relax.op.add(added, of_input))
            direction = _Direction(
                recurrent,
                recurrent_bias,
                product,
                _part(bb, operand(inputs, 7), side),
                activations[side * len(defaults) : (side + 1) * len(defaults)],
                hidden,
                attrs,
            )
            state: Sequence[relax.Expr] = [
                relax.const(np.zeros((shape[1], hidden), dtype), dtype)
                if given is None
                else _part(bb, given, side)
                for given in initial
            ]
            backwards = sides == "reverse" or side == 1
            row, state = _run(
                bb, cell, direction, added, state, operand(inputs, 4), shape[0], backwards
            )
            rows.append(row)
            last.append(state)
        y = bb.emit(relax.op.stack(rows, 1))
        ends = [bb.emit(relax.op.stack([s[i] for s in last], 0)) for i in range(states)]
        return _ordered(bb, y, ends, layout, attrs)

    return convert


def _ordered(
    bb: relax.BlockBuilder,
    y: relax.Expr,
    ends: Sequence[relax.Expr],
    layout: int,
    attrs: Attributes,
) -> relax.Expr:
    """Return the results that the node has, the batch first where it wants it."""
    if layout:
        y = bb.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
        ends = [bb.emit(relax.op.permute_dims(end, [1, 0, 2])) for end in ends]
    results = [y, *ends][: num_outputs(attrs)]
    return results[0] if len(results) == 1 else relax.Tuple(results)


def _of_open_lengths(
    bb: relax.BlockBuilder,
    kind: str,
    x: relax.Expr,
    inputs: Sequence[relax.Expr],
    initial: Sequence[relax.Expr | None],
    names: Sequence[str],
    attrs: Attributes,
) -> list[relax.Expr]:
    """Run a layer whose batch or number of steps is open, by one operator."""
    directions, wide, hidden = (int(length) for length in inputs[2].ty.shape)
    dtype, batch = str(x.ty.dtype), x.ty.shape[1]
    known = constant_of(inputs[1])
    if known is not None:
        weights: relax.Expr = relax.const(
            np.ascontiguousarray(known.reshape(directions * wide, -1).T), dtype
        )
    else:
        flat = bb.emit(relax.op.reshape(inputs[1], (directions * wide, -1)))
        weights = bb.emit(relax.op.permute_dims(flat))
    products = bb.emit(relax.op.matmul(x, weights))
    bias, recurrent_bias = operand(inputs, 3), relax.const(np.zeros((directions, wide), dtype))
    if bias is not None:
        of_input, recurrent_bias = _split(bb, bias, [wide], 1)
        flat = bb.emit(relax.op.reshape(of_input, (directions * wide,)))
        products = bb.emit(relax.op.add(products, flat))
    states = [
        bb.emit(relax.op.zeros((directions, batch, hidden), dtype)) if given is None else given
        for given in initial
    ]
    resets = bool(attrs.get("linear_before_reset", 0))
    own = with_parameters(names, attrs)
    each = len(own) // directions
    whole = recurrent_layer(
        kind,
        products,
        packed(bb, inputs[2], kind, resets),
        recurrent_bias,
        [_of_shape(bb, state, (directions, batch, hidden)) for state in states],
        activations=[own[side * each : (side + 1) * each] for side in range(directions)],
        backwards=[
            side == 1 or text(attrs, "direction", "forward") == "reverse"
            for side in range(directions)
        ],
        peepholes=operand(inputs, 7),
        lengths=operand(inputs, 4),
        clip=float(attrs["clip"]) if "clip" in attrs else None,
        linear_before_reset=resets,
        input_forget=bool(attrs.get("input_forget", 0)),
    )
    made = bb.emit(whole)
    return [bb.emit(relax.TupleGetItem(made, i)) for i in range(1 + len(states))]


def _of_shape(bb: relax.BlockBuilder, state: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    """Return a state with the batch of the sequence, which the host checks in the run."""
    own = lengths_of(state.ty)
    if own is None:
        raise NotImplementedError("a recurrent layer with a state of a rank that the run tells")
    for length, wanted in zip(own, shape, strict=True):
        ensure(bb, tirx.EQ(_int64(length), _int64(wanted)))
    return bb.emit(relax.op.reshape(state, shape))


def _int64(length: Any) -> Any:
    return tirx.IntImm("int64", length) if isinstance(length, int) else length


def _run(
    bb: relax.BlockBuilder,
    cell: Cell,
    direction: _Direction,
    added: relax.Expr,
    state: Sequence[relax.Expr],
    lengths: relax.Expr | None,
    steps: int,
    backwards: bool,
) -> tuple[relax.Expr, Sequence[relax.Expr]]:
    """Return the results of all steps ``(steps, batch, hidden)``, and the last states."""
    nothing = scalar(0.0, added)
    outputs: dict[int, relax.Expr] = {}
    if lengths is not None:
        lengths = bb.emit(relax.op.expand_dims(lengths, 1))
    for step in reversed(range(steps)) if backwards else range(steps):
        index = relax.const(np.int64(step), "int64")
        item = bb.emit(relax.op.take(added, index, 0, mode="clip"))
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


def _simple(
    bb: relax.BlockBuilder, layer: _Direction, item: relax.Expr, state: Sequence[relax.Expr]
) -> Sequence[relax.Expr]:
    total = _with_state(bb, layer, item, state[0])
    return [layer.activations[0](_clipped(layer, total))]


def _gru(
    bb: relax.BlockBuilder, layer: _Direction, item: relax.Expr, state: Sequence[relax.Expr]
) -> Sequence[relax.Expr]:
    """Step a cell with gates in the order update, reset, hidden (Cho et al. 2014, as in ONNX)."""
    (before,) = state
    f, g = layer.activations
    first, second = [2 * layer.hidden], [layer.hidden]
    x_gates, x_hidden = _split(bb, item, first, 1)
    r_gates, r_hidden = _split(bb, layer.recurrence, first, 1)
    b_gates = b_hidden = None
    if layer.recurrent_bias is not None:
        b_gates, b_hidden = _split(bb, layer.recurrent_bias, first, 0)
    gates = bb.emit(relax.op.add(x_gates, _affine(bb, before, r_gates, b_gates)))
    gates = bb.emit(f(_clipped(layer, gates)))
    update, reset = _split(bb, gates, second, 1)
    if layer.attrs.get("linear_before_reset", 0):
        inner = relax.op.multiply(reset, _affine(bb, before, r_hidden, b_hidden))
    else:
        inner = _affine(bb, bb.emit(relax.op.multiply(reset, before)), r_hidden, b_hidden)
    new = bb.emit(g(_clipped(layer, bb.emit(relax.op.add(x_hidden, inner)))))
    # (1 - z) · new + z · before
    return [relax.op.add(new, relax.op.multiply(update, relax.op.subtract(before, new)))]


def _lstm(
    bb: relax.BlockBuilder, layer: _Direction, item: relax.Expr, state: Sequence[relax.Expr]
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
    if layer.attrs.get("input_forget", 0):
        forget = bb.emit(relax.op.subtract(scalar(1.0, i), i))
    else:
        forget = bb.emit(f(_clipped(layer, forget)))
    new = relax.op.multiply(i, g(_clipped(layer, c)))
    cell = bb.emit(relax.op.add(relax.op.multiply(forget, cell_before), new))
    if layer.peepholes is not None:
        o = bb.emit(relax.op.add(o, relax.op.multiply(p_o, cell)))
    return [relax.op.multiply(f(_clipped(layer, o)), h(cell)), cell]


def _with_state(
    bb: relax.BlockBuilder, layer: _Direction, item: relax.Expr, state: relax.Expr
) -> relax.Expr:
    if layer.products.bias_last:
        product = layer.products.of_state(bb, state, layer.recurrence)
        total, bias = bb.emit(relax.op.add(item, product)), layer.recurrent_bias
        return total if bias is None else bb.emit(relax.op.add(total, bias))
    product = _affine(bb, state, layer.recurrence, layer.recurrent_bias)
    return bb.emit(relax.op.add(item, product))


def _affine(
    bb: relax.BlockBuilder, x: relax.Expr, weights: relax.Expr, bias: relax.Expr | None
) -> relax.Expr:
    product = bb.emit(relax.op.matmul(x, weights))
    return product if bias is None else bb.emit(relax.op.add(product, bias))


def _clipped(layer: _Direction, value: relax.Expr) -> relax.Expr:
    """Clip the operand of an activation, if the node says so."""
    limit = layer.attrs.get("clip")
    return value if limit is None else relax.op.clip(value, -float(limit), float(limit))


def _part(bb: relax.BlockBuilder, value: relax.Expr | None, index: int) -> relax.Expr | None:
    """Return one direction's part of an operand, which has the directions first."""
    known = constant_of(value)
    if value is None or known is None:
        at = relax.const(np.int64(index), "int64")
        return value if value is None else bb.emit(relax.op.take(value, at, 0, mode="clip"))
    return relax.const(np.ascontiguousarray(known[index]), str(known.dtype))


def _transposed(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    known = constant_of(value)
    if known is None:
        return bb.emit(relax.op.permute_dims(value))
    return relax.const(np.ascontiguousarray(known.T), str(known.dtype))


def _halves(bb: relax.BlockBuilder, bias: relax.Expr, length: int) -> tuple[relax.Expr, relax.Expr]:
    """Return the biases of the input and of the recurrence."""
    first, second = _split(bb, bias, [length], 0)
    return first, second


def _added(bb: relax.BlockBuilder, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    known = constant_of(a), constant_of(b)
    if known[0] is None or known[1] is None:
        return bb.emit(relax.op.add(a, b))
    return relax.const(known[0] + known[1], str(known[0].dtype))


def _split(
    bb: relax.BlockBuilder, value: relax.Expr, at: Sequence[int], axis: int
) -> list[relax.Expr]:
    known = constant_of(value)
    if known is not None:
        parts = np.split(known, list(at), axis)
        return [relax.const(np.ascontiguousarray(p), str(p.dtype)) for p in parts]
    parts = bb.emit(relax.op.split(value, list(at), axis))
    return [bb.emit(relax.TupleGetItem(parts, i)) for i in range(len(at) + 1)]


def recurrent_flops(op: Operation) -> int:
    """Count products with ``W [directions, gates * H, I]`` and ``R``; gates are left out."""
    sequence_and_batch = math.prod(known(op.inputs[0])[:2])
    return 2 * sequence_and_batch * (elements(op.inputs[1]) + elements(op.inputs[2]))


register("GRU", convert=_layer("GRU", 3, ["Sigmoid", "Tanh"], _gru, 1), flops=recurrent_flops)
register(
    "LSTM", convert=_layer("LSTM", 4, ["Sigmoid", "Tanh", "Tanh"], _lstm, 2), flops=recurrent_flops
)
register("RNN", convert=_layer("RNN", 1, ["Tanh"], _simple, 1), flops=recurrent_flops)
