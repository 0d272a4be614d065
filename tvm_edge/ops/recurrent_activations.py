"""Activations of recurrent layers, by the names that the standard has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes

__all__ = ["Activation", "activation", "activations_of", "with_parameters"]

Activation = Callable[[relax.Expr], relax.Expr]


def activations_of(names: Sequence[str], attrs: Attributes, dtype: str) -> list[Activation]:
    """Make activations; each with parameters takes the next alpha and beta of the node.

    Another converter may give others by name, as the attribute ``functions``.
    """
    result = []
    for name, alpha, beta in with_parameters(names, attrs):
        own = attrs.get("functions", {}).get(name)
        result.append(activation(name, alpha, beta, dtype) if own is None else own)
    return result


def activation(name: str, alpha: float, beta: float, dtype: str) -> Activation:
    """Make an activation."""
    return _ACTIVATIONS[name][0](alpha, beta, dtype)


def with_parameters(names: Sequence[str], attrs: Attributes) -> list[tuple[str, float, float]]:
    """Give each activation that has parameters the next alpha and beta of the node."""
    alphas = list(attrs.get("activation_alpha", ()))
    betas = list(attrs.get("activation_beta", ()))
    result = []
    for name in names:
        if name not in _ACTIVATIONS:
            raise NotImplementedError(f"a recurrent layer with the activation {name}")
        _, alpha, beta = _ACTIVATIONS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        result.append((name, float(alpha or 0.0), float(beta or 0.0)))
    return result


def _scaled(x: relax.Expr, alpha: float, beta: float, dtype: str) -> relax.Expr:
    product = relax.op.multiply(x, relax.const(alpha, dtype))
    return relax.op.add(product, relax.const(beta, dtype))


# By name: from alpha, beta and the type, and their defaults; None for a parameter that it lacks.
_ACTIVATIONS: dict[
    str, tuple[Callable[[float, float, str], Activation], float | None, float | None]
] = {
    "Affine": (lambda a, b, t: lambda x: _scaled(x, a, b, t), 1.0, 0.0),
    "HardSigmoid": (
        lambda a, b, t: lambda x: relax.op.clip(_scaled(x, a, b, t), 0, 1),
        0.2,
        0.5,
    ),
    "LeakyRelu": (lambda a, b, t: lambda x: relax.op.nn.leakyrelu(x, a), 0.01, None),
    "Relu": (lambda a, b, t: relax.op.nn.relu, None, None),
    "ScaledTanh": (
        lambda a, b, t: lambda x: _scaled(relax.op.tanh(_scaled(x, b, 0.0, t)), a, 0.0, t),
        1.0,
        1.0,
    ),
    "Sigmoid": (lambda a, b, t: relax.op.sigmoid, None, None),
    "Tanh": (lambda a, b, t: relax.op.tanh, None, None),
}
