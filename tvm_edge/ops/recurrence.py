"""A recurrent layer as one operator: its steps, of any number, are one kernel of a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import Fitness, register
from tvm_edge.relay_passes.ir.expressions import constant_of
from tvm_edge.schedules.cpu.recurrence import recurrence
from tvm_edge.schedules.cpu.recurrent_cell import Activation, Part, Recurrence, parts_of

__all__ = ["RECURRENCE", "recurrent_layer"]

RECURRENCE = "tvm_edge.recurrence"


def recurrent_layer(
    kind: str,
    products: relax.Expr,
    weights: relax.Expr,
    bias: relax.Expr,
    states: Sequence[relax.Expr],
    *,
    activations: Sequence[Sequence[tuple[str, float, float]]],
    backwards: Sequence[bool],
    peepholes: relax.Expr | None = None,
    lengths: relax.Expr | None = None,
    clip: float | None = None,
    linear_before_reset: bool = False,
    input_forget: bool = False,
) -> relax.Call:
    """Run a recurrent layer, of ONNX's definition and order of gates, over sequences.

    Parameters
    ----------
    kind : {"RNN", "GRU", "LSTM"}
    products : relax.Expr
        Products of the sequence with the weights: ``(steps, batch, directions · gates · hidden)``.
    weights : relax.Expr
        Recurrent weights, ``(directions, gates · hidden, hidden)``.
    bias : relax.Expr
        ``(directions, gates · hidden)``.
    states : sequence of relax.Expr
        The first states, ``(directions, batch, hidden)``: one, or two of an LSTM.
    activations : sequence of sequence of (str, float, float)
        Name, alpha and beta, for each direction.
    backwards : sequence of bool
        For each direction, whether it begins with the last step.
    peepholes : relax.Expr, optional
        ``(directions, 3 · hidden)``.
    lengths : relax.Expr, optional
        Steps of each sequence, ``(batch,)`` int32.
    clip : float, optional
        Bound of the operands of activations.
    linear_before_reset, input_forget : bool

    Returns
    -------
    relax.Call
        A tuple: the results, ``(steps, directions, batch, hidden)``, and the last states.
    """
    optional = [value for value in (peepholes, lengths) if value is not None]
    how = {
        "kind": kind,
        "activations": [[list(each) for each in side] for side in activations],
        "backwards": [bool(side) for side in backwards],
        "clip": clip,
        "linear_before_reset": linear_before_reset,
        "input_forget": input_forget,
        "has_peepholes": peepholes is not None,
        "has_lengths": lengths is not None,
    }
    operands = [products, weights, bias, *optional, *states]
    return registry.call(RECURRENCE, operands, how=json.dumps(how))


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    products, state = call.args[0].ty, call.args[-1].ty
    states = 2 if json.loads(str(call.attrs["how"]))["kind"] == "LSTM" else 1
    directions, batch, hidden = state.shape
    shape = [products.shape[0], directions, batch, hidden]
    result = relax.TensorType(shape, products.dtype, products.vdevice)
    return relax.TupleType([result, *[state] * states])


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    how: dict[str, Any] = json.loads(str(call.attrs["how"]))
    directions, batch, hidden = call.args[-1].ty.shape
    dtype = str(call.args[0].ty.dtype)
    activations = how.pop("activations")
    layer = Recurrence(
        **{**how, "backwards": tuple(how["backwards"])},
        hidden=int(hidden),
        directions=int(directions),
        activations=tuple(
            tuple(_activation(name, alpha, beta, dtype) for name, alpha, beta in side)
            for side in activations
        ),
        dtype=dtype,
    )
    products, weights, *rest = call.args
    packed = [_packed(site, weights, part) for part in parts_of(layer, site.spec)]
    count = int(batch) if isinstance(batch, tirx.IntImm) else None
    kernel = recurrence(layer, count, site.spec)
    types = [site.tensor(field.shape, dtype) for field in call.ty.fields]
    operands = [products, *packed, *rest]
    return relax.Tuple(site.call(kernel.func, "recurrence", operands, types))


def _packed(site: KernelSite, weights: relax.Expr, part: Part) -> relax.Expr:
    """Lay a part of the recurrent weights out as the kernel reads them.

    Returns ``(directions, tiles, hidden, gates · units)``.
    """
    directions, _, hidden = (int(length) for length in weights.ty.shape)
    first, count = part.gates[0], len(part.gates)
    begin, end = first * hidden, (first + count) * hidden
    more = part.tiles * part.units - hidden
    split = (directions, count, part.tiles, part.units, hidden)
    order, whole = (0, 2, 4, 1, 3), (directions, part.tiles, hidden, count * part.units)
    known = constant_of(weights)
    if known is not None:
        own = known[:, begin:end].reshape(directions, count, hidden, hidden)
        own = np.pad(own, ((0, 0), (0, 0), (0, more), (0, 0)))
        packed = own.reshape(split).transpose(order).reshape(whole)
        return relax.const(np.ascontiguousarray(packed), str(known.dtype))
    value = site.emit(relax.op.strided_slice(weights, [1], [begin], [end]))
    value = site.reshape(value, (directions, count, hidden, hidden))
    value = site.emit(relax.op.nn.pad(value, [0, 0, 0, 0, 0, more, 0, 0]))
    value = site.emit(relax.op.permute_dims(site.reshape(value, split), list(order)))
    return site.reshape(value, whole)


def _activation(name: str, alpha: float, beta: float, dtype: str) -> Activation:
    a, b = tirx.const(alpha, dtype), tirx.const(beta, dtype)
    return lambda x: _FUNCTIONS[name](x, a, b)


def _clipped(x: tirx.Expr, low: float, high: float) -> tirx.Expr:
    dtype = str(x.ty.dtype)
    return tirx.max(tirx.min(x, tirx.const(high, dtype)), tirx.const(low, dtype))


_FUNCTIONS: Mapping[str, Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]] = {
    "Affine": lambda x, a, b: x * a + b,
    "HardSigmoid": lambda x, a, b: _clipped(x * a + b, 0, 1),
    "LeakyRelu": lambda x, a, b: tirx.Select(x >= 0, x, x * a),
    "Relu": lambda x, a, b: tirx.max(x, tirx.const(0, str(x.ty.dtype))),
    "ScaledTanh": lambda x, a, b: a * tirx.tanh(x * b),
    "Sigmoid": lambda x, a, b: tirx.sigmoid(x),
    "Tanh": lambda x, a, b: tirx.tanh(x),
}

register(
    RECURRENCE,
    infer_type=_infer_type,
    lower=_lower,
    gpu=Fitness(impossible="the steps of a layer are one kernel of the CPU"),
)
