"""Conversion of a part of an operator as an operator of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.registry import find

__all__ = ["activated", "standard", "standard_outputs"]

_OPSET = 20


def standard(
    bb: relax.BlockBuilder,
    name: str,
    inputs: Sequence[relax.Expr | None],
    attrs: Attributes,
    opset: int = _OPSET,
) -> relax.Expr:
    """Convert as ONNX's operator `name`, and return its first output.

    Parameters
    ----------
    bb : relax.BlockBuilder
    name : str
    inputs : sequence of relax.Expr or None
        Operands, ``None`` for one that is left out.
    attrs : dict
        Attributes of that operator. Others are ignored.
    opset : int
        Version of ONNX's operators.
    """
    return standard_outputs(bb, name, inputs, attrs, 1, opset)[0]


def standard_outputs(
    bb: relax.BlockBuilder,
    name: str,
    inputs: Sequence[relax.Expr | None],
    attrs: Attributes,
    outputs: int,
    opset: int = _OPSET,
) -> list[relax.Expr]:
    """Convert as :func:`standard`, and return the first `outputs` results."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map, onnx_input

    operands = onnx_input(inputs)
    own = {
        **attrs,
        "opset": opset,
        "small_types": (),
        "elements": [None] * len(operands),
        "tvm_custom": {**attrs.get("tvm_custom", {}), "num_outputs": outputs},
    }
    convert = find(name).convert
    made = None if convert is None else convert(bb, operands, own)
    if made is None:
        made = _get_convert_map()[name].get_converter(opset)(bb, operands, own, [{}, {}])
    if isinstance(made, relax.Tuple):
        return [bb.emit(field) for field in made.fields[:outputs]]
    made = bb.emit(made)
    if isinstance(made.ty, relax.TupleType):
        return [bb.emit(relax.TupleGetItem(made, i)) for i in range(outputs)]
    return [made]


# Names of the parameters of activations, in the order of ``activation_params``.
_PARAMETERS = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "ThresholdedRelu": ("alpha",),
}
_PLAIN = frozenset({"Gelu", "HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})


def activated(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    name: str,
    parameters: Attributes | Sequence[float],
) -> relax.Expr:
    """Apply a fused activation, an operator of ONNX.

    Parameters
    ----------
    bb : relax.BlockBuilder
    x : relax.Expr
    name : str
        Its name; empty for none.
    parameters : dict, or sequence of float
        Its attributes by name, or in ONNX Runtime's order.

    Raises
    ------
    NotImplementedError
        Another function.
    """
    if not name:
        return x
    if name not in _PARAMETERS and name not in _PLAIN:
        raise NotImplementedError(f"the fused activation {name}")
    if not isinstance(parameters, dict):
        names = _PARAMETERS.get(name, ())
        parameters = dict(zip(names, parameters, strict=False))
    if name == "Clip":
        bounds = [parameters.get("min", -np.inf), parameters.get("max", np.inf)]
        return bb.emit(relax.op.clip(x, *map(float, bounds)))
    return standard(bb, name, [x], parameters)
