"""Recurrent layers RNN, GRU and LSTM.

The inputs of all steps enter the gates by one product of matrices. What is left, step by step, is
one operator; a layer whose steps multiply integers is written out here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, Converter, num_outputs, operand, text
from tvm_edge.ops.elements import ensure
from tvm_edge.ops.flops import Operation, elements, known
from tvm_edge.ops.recurrence import recurrent_layer
from tvm_edge.ops.recurrent_activations import activations_of, with_parameters
from tvm_edge.ops.recurrent_steps import MOST_STEPS, Direction, Products, part_of, unrolled
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of, static_shape

__all__ = ["recurrent_flops"]


def _layer(kind: str, defaults: Sequence[str], states: int) -> Converter:
    """Make a converter for cells of so many states."""

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
        recurrence = static_shape(inputs[2].ty)
        if recurrence is None:
            raise NotImplementedError("a recurrent layer with weights of open dimensions")
        names = [
            name.decode() if isinstance(name, bytes) else name
            for name in attrs.get("activations", list(defaults) * recurrence[0])
        ]
        make = _operator if attrs.get("products") is None else _steps_of_products
        y, *ends = make(bb, kind, [x, *inputs[1:]], initial, names, attrs)
        if layout:
            y = bb.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            ends = [bb.emit(relax.op.permute_dims(end, [1, 0, 2])) for end in ends]
        results = [y, *ends][: num_outputs(attrs)]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    return convert


def _steps_of_products(
    bb: relax.BlockBuilder,
    kind: str,
    inputs: Sequence[relax.Expr],
    initial: Sequence[relax.Expr | None],
    names: Sequence[str],
    attrs: Attributes,
) -> list[relax.Expr]:
    """Write out a layer with products of its own: results and last states."""
    shape = static_shape(inputs[0].ty)
    if shape is None:
        raise NotImplementedError(
            "a recurrent layer with int8 weights and an open batch or number of steps; "
            "fix both with input_shapes"
        )
    if shape[0] > MOST_STEPS:
        raise NotImplementedError(
            f"a recurrent layer with int8 weights of more than {MOST_STEPS} steps"
        )
    directions, wide, hidden = (int(length) for length in inputs[2].ty.shape)
    dtype = str(inputs[0].ty.dtype)
    activations = activations_of(names, attrs, dtype)
    each = len(activations) // directions
    products: Sequence[Products] = attrs["products"]
    rows, last = [], []
    for side in range(directions):
        added = products[side].of_input(bb, inputs[0], _transposed(bb, inputs[1], side))
        bias, peepholes = operand(inputs, 3), operand(inputs, 7)
        own = None
        if bias is not None:
            halves = relax.op.reshape(part_of(bb, bias, side), (2, wide))
            own = bb.emit(relax.op.sum(halves, 0))
        direction = Direction(
            kind=kind,
            added=added,
            recurrence=_transposed(bb, inputs[2], side),
            bias=own,
            products=products[side],
            peepholes=None if peepholes is None else part_of(bb, peepholes, side),
            activations=activations[side * each : (side + 1) * each],
            hidden=hidden,
            backwards=_backwards(attrs, side),
            **_settings(attrs),
        )
        state: Sequence[relax.Expr] = [
            relax.const(np.zeros((shape[1], hidden), dtype), dtype)
            if given is None
            else part_of(bb, given, side)
            for given in initial
        ]
        row, state = unrolled(bb, direction, state, operand(inputs, 4), shape[0])
        rows.append(row)
        last.append(state)
    ends = [bb.emit(relax.op.stack([s[i] for s in last], 0)) for i in range(len(initial))]
    return [bb.emit(relax.op.stack(rows, 1)), *ends]


def _backwards(attrs: Attributes, side: int) -> bool:
    return side == 1 or text(attrs, "direction", "forward") == "reverse"


def _settings(attrs: Attributes) -> dict[str, Any]:
    return {
        "clip": float(attrs["clip"]) if "clip" in attrs else None,
        "linear_before_reset": bool(attrs.get("linear_before_reset", 0)),
        "input_forget": bool(attrs.get("input_forget", 0)),
    }


def _transposed(bb: relax.BlockBuilder, value: relax.Expr, side: int) -> relax.Expr:
    part = part_of(bb, value, side)
    known = constant_of(part)
    if known is None:
        return bb.emit(relax.op.permute_dims(part))
    return relax.const(np.ascontiguousarray(known.T), str(known.dtype))


def _operator(
    bb: relax.BlockBuilder,
    kind: str,
    inputs: Sequence[relax.Expr],
    initial: Sequence[relax.Expr | None],
    names: Sequence[str],
    attrs: Attributes,
) -> list[relax.Expr]:
    """Run a layer by one operator, of any batch and number of steps: results and last states."""
    x = inputs[0]
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
        of_input, recurrent_bias = _halves(bb, bias, wide)
        flat = bb.emit(relax.op.reshape(of_input, (directions * wide,)))
        products = bb.emit(relax.op.add(products, flat))
    states = [
        bb.emit(relax.op.zeros((directions, batch, hidden), dtype)) if given is None else given
        for given in initial
    ]
    own = with_parameters(names, attrs)
    each = len(own) // directions
    whole = recurrent_layer(
        kind,
        products,
        inputs[2],
        recurrent_bias,
        [_of_shape(bb, state, (directions, batch, hidden)) for state in states],
        activations=[own[side * each : (side + 1) * each] for side in range(directions)],
        backwards=[_backwards(attrs, side) for side in range(directions)],
        peepholes=operand(inputs, 7),
        lengths=operand(inputs, 4),
        **_settings(attrs),
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


def _halves(bb: relax.BlockBuilder, bias: relax.Expr, wide: int) -> list[relax.Expr]:
    """Return the biases of the input and of the recurrence, ``(directions, gates · hidden)``."""
    known = constant_of(bias)
    if known is not None:
        parts = np.split(known, [wide], 1)
        return [relax.const(np.ascontiguousarray(part), str(part.dtype)) for part in parts]
    parts = bb.emit(relax.op.split(bias, [wide], 1))
    return [bb.emit(relax.TupleGetItem(parts, i)) for i in range(2)]


def recurrent_flops(op: Operation) -> int:
    """Count products with ``W [directions, gates * H, I]`` and ``R``; gates are left out."""
    sequence_and_batch = math.prod(known(op.inputs[0])[:2])
    return 2 * sequence_and_batch * (elements(op.inputs[1]) + elements(op.inputs[2]))


register("GRU", convert=_layer("GRU", ["Sigmoid", "Tanh"], 1), flops=recurrent_flops)
register("LSTM", convert=_layer("LSTM", ["Sigmoid", "Tanh", "Tanh"], 2), flops=recurrent_flops)
register("RNN", convert=_layer("RNN", ["Tanh"], 1), flops=recurrent_flops)
