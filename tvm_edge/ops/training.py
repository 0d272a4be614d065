"""Losses, gradients, and the steps of optimisers.

ONNX has optimisers in ``ai.onnx.preview.training``: a model that trains holds its gradients as
operators, and calls one of these for a step. What the steps are made of is element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes, Converter, scalar, text
from tvm_edge.ops.registry import PERFORMS, Fitness, register, relax_names

__all__: list[str] = []

_DOMAIN = "ai.onnx.preview.training"

# Of the builder, the attributes, the learning rate, the number of updates so far, and of a tensor,
# its gradient and its state; makes the new tensor and the new state.
Step = Callable[
    [relax.BlockBuilder, Attributes, relax.Expr, relax.Expr, Sequence[relax.Expr]],
    list[relax.Expr],
]


def _optimiser(step: Step, states: int) -> Converter:
    """Make a converter of a step with so many tensors of state for each that is optimised."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr:
        rate, updates, *tensors = inputs
        count, rest = divmod(len(tensors), 2 + states)
        if rest or not count:
            raise ValueError(f"an optimiser of {len(tensors)} tensors, {2 + states} for each")
        made = []
        for i in range(count):
            own = tensors[i::count]
            kind = str(own[0].ty.dtype)
            made.append(step(bb, attrs, _as(bb, rate, kind), _as(bb, updates, kind), own))
        return relax.Tuple([bb.emit(new[part]) for part in range(1 + states) for new in made])

    return convert


def _as(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """Convert a scalar, which files also have as a vector of one element."""
    if value.ty.ndim:
        value = bb.emit(relax.op.reshape(value, ()))
    return value if str(value.ty.dtype) == dtype else bb.emit(relax.op.astype(value, dtype))


def _scaled(factor: float, x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(scalar(factor, x), x)


def _regularised(
    bb: relax.BlockBuilder, attrs: Attributes, x: relax.Expr, gradient: relax.Expr
) -> relax.Expr:
    """Add the gradient of the squared norm."""
    factor = float(attrs.get("norm_coefficient", 0.0))
    return bb.emit(relax.op.add(_scaled(factor, x), gradient)) if factor else gradient


def _adagrad(
    bb: relax.BlockBuilder,
    attrs: Attributes,
    rate: relax.Expr,
    updates: relax.Expr,
    tensors: Sequence[relax.Expr],
) -> list[relax.Expr]:
    """Duchi, Hazan and Singer, JMLR 12 (2011), figure 1."""
    x, gradient, squares = tensors
    decay = _scaled(float(attrs.get("decay_factor", 0.0)), updates)
    rate = relax.op.divide(rate, relax.op.add(scalar(1, rate), decay))
    gradient = _regularised(bb, attrs, x, gradient)
    squares = bb.emit(relax.op.add(squares, relax.op.multiply(gradient, gradient)))
    epsilon = scalar(float(attrs.get("epsilon", 1e-6)), x)
    size = relax.op.add(relax.op.sqrt(squares), epsilon)
    step = relax.op.divide(relax.op.multiply(rate, gradient), size)
    return [relax.op.subtract(x, step), squares]


def _adam(
    bb: relax.BlockBuilder,
    attrs: Attributes,
    rate: relax.Expr,
    updates: relax.Expr,
    tensors: Sequence[relax.Expr],
) -> list[relax.Expr]:
    """Kingma and Ba, ICLR 2015, algorithm 1, with the bias corrected in the rate."""
    x, gradient, mean, squares = tensors
    alpha, beta = float(attrs.get("alpha", 0.9)), float(attrs.get("beta", 0.999))
    gradient = _regularised(bb, attrs, x, gradient)
    mean = bb.emit(relax.op.add(_scaled(alpha, mean), _scaled(1 - alpha, gradient)))
    square = bb.emit(relax.op.multiply(gradient, gradient))
    squares = bb.emit(relax.op.add(_scaled(beta, squares), _scaled(1 - beta, square)))

    def missing(factor: float) -> relax.Expr:
        power = relax.op.power(scalar(factor, updates), updates)
        return relax.op.subtract(scalar(1, updates), power)

    begun = relax.op.greater(updates, scalar(0, updates))
    corrected = relax.op.multiply(rate, relax.op.sqrt(missing(beta)))
    corrected = relax.op.divide(corrected, missing(alpha))
    rate = bb.emit(relax.op.where(begun, corrected, rate))
    size = relax.op.add(relax.op.sqrt(squares), scalar(float(attrs.get("epsilon", 1e-6)), x))
    x = bb.emit(relax.op.subtract(x, relax.op.divide(relax.op.multiply(rate, mean), size)))
    after = float(attrs.get("norm_coefficient_post", 0.0))
    return [_scaled(1 - after, x) if after else x, mean, squares]


def _momentum(
    bb: relax.BlockBuilder,
    attrs: Attributes,
    rate: relax.Expr,
    updates: relax.Expr,
    tensors: Sequence[relax.Expr],
) -> list[relax.Expr]:
    """Momentum, or Nesterov's, of which the first step takes the gradient as it is."""
    x, gradient, momentum = tensors
    gradient = _regularised(bb, attrs, x, gradient)
    beta = relax.op.where(
        relax.op.greater(updates, scalar(0, updates)),
        scalar(float(attrs["beta"]), x),
        scalar(1, x),
    )
    alpha = float(attrs["alpha"])
    momentum = bb.emit(relax.op.add(_scaled(alpha, momentum), relax.op.multiply(beta, gradient)))
    direction = momentum
    if text(attrs, "mode", "standard") == "nesterov":
        direction = relax.op.add(gradient, _scaled(alpha, momentum))
    return [relax.op.subtract(x, relax.op.multiply(rate, direction)), momentum]


register(f"{_DOMAIN}.Adagrad", convert=_optimiser(_adagrad, states=1))
register(f"{_DOMAIN}.Adam", convert=_optimiser(_adam, states=2))
register(f"{_DOMAIN}.Momentum", convert=_optimiser(_momentum, states=1))

register(*relax_names("nn.cross_entropy_with_logits nn.nll_loss"), gpu=PERFORMS)
register(
    *relax_names(
        "grad.avg_pool2d_backward grad.max_pool2d_backward grad.nll_loss_backward "
        "grad.take_backward"
    ),
    gpu=Fitness(left_out="it is of training, for which nothing here is made"),
)
