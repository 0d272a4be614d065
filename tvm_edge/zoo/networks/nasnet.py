"""NASNet: Zoph et al., Learning Transferable Architectures, CVPR 2018."""

from __future__ import annotations

import numpy as np

from tvm_edge.zoo.calibration import LOGITS, RELU, Scale
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import (
    average_pool,
    batch_norm,
    concat,
    conv,
    conv_bn,
    gemm,
    global_pool,
    max_pool,
    relu,
)

__all__ = ["nasnet_mobile"]

_EPSILON = 1e-3
_FILTERS = 44  # 1056 of the last cell, over its 6 branches and 4 for two reductions
_REPEATS = 4
# One of two branches whose sum is to have RELU's mean and deviation.
_SUMMAND = Scale(deviation=0.7, mean=0.5, spread=0.15)


def nasnet_mobile(g: Graph) -> None:
    """NASNet-A (4 @ 1056) without the auxiliary classifier, which only training uses.

    Cells are those of figure 4; what the paper leaves open (the stem, how an earlier cell's output
    is brought to a later one's shape, TensorFlow's padding) is as in TF-slim and Keras.
    """
    x = conv_bn(
        g.data,
        g.channels(32),
        3,
        name="stem",
        stride=2,
        activation=None,
        scale=RELU,
        epsilon=_EPSILON,
    )
    previous: Tensor | None = None
    for index, filters in enumerate((_FILTERS // 4, _FILTERS // 2), start=1):
        with g.scope(f"stem{index}"):
            x, previous = _reduction_cell(x, previous, g.channels(filters)), x
    for stage in range(1, 4):
        filters = g.channels(_FILTERS * 2 ** (stage - 1))
        if stage > 1:
            with g.scope(f"reduction{stage - 1}"):
                x, previous = _reduction_cell(x, previous, filters), x
        for index in range(_REPEATS):
            with g.scope(f"stage{stage}/cell{index}"):
                x, previous = _normal_cell(x, previous, filters), x
    x = global_pool(relu(x, name="relu"))
    g.output("logits", gemm(x, 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def _normal_cell(x: Tensor, previous: Tensor | None, filters: int) -> Tensor:
    """Figure 4, left; `previous` is the input of the cell that made `x`."""
    p, h = _fit(previous, x, filters), _squeeze(x, filters, name="squeeze")
    return concat(
        p,
        _add("add1", _separable(h, filters, 5, name="h5"), _separable(p, filters, 3, name="p3")),
        _add("add2", _separable(p, filters, 5, name="p5"), _separable(p, filters, 3, name="p3b")),
        _add("add3", _average(h, name="h_average"), p),
        _add("add4", _average(p, name="p_average"), _average(p, name="p_average2")),
        _add("add5", _separable(h, filters, 3, name="h3"), h),
    )


def _reduction_cell(x: Tensor, previous: Tensor | None, filters: int) -> Tensor:
    """Figure 4, right: half the height and width of `x`."""
    p, h = _fit(previous, x, filters), _squeeze(x, filters, name="squeeze")
    one = _add(
        "add1",
        _separable(h, filters, 5, name="h5", stride=2),
        _separable(p, filters, 7, name="p7", stride=2),
    )
    two = _add(
        "add2",
        max_pool(h, 3, name="h_max", stride=2, pads="same"),
        _separable(p, filters, 7, name="p7b", stride=2),
    )
    three = _add(
        "add3",
        _average(h, name="h_average", stride=2),
        _separable(p, filters, 5, name="p5", stride=2),
    )
    four = _add("add4", two, _average(one, name="one_average"))
    five = _add(
        "add5",
        _separable(one, filters, 3, name="one3"),
        max_pool(h, 3, name="h_max2", stride=2, pads="same"),
    )
    return concat(two, three, four, five)


def _fit(previous: Tensor | None, x: Tensor, filters: int) -> Tensor:
    """Bring `previous` to the height and width of `x` and to `filters`, where it has others.

    The first cell has nothing before it and reads `x`, as it is, in its place. Halving takes every
    other pixel twice, the second time one row and column further, so that all of the diagonal
    counts: half of the channels from each.
    """
    if previous is None:
        return x
    if previous.spatial == x.spatial:
        return previous if previous.channels == filters else _squeeze(previous, filters, name="fit")
    g = previous.graph
    with g.scope("fit"):
        rectified = relu(previous, name="relu")
        even = average_pool(rectified, 1, name="even", stride=2)
        pads = g.constant(np.array([0, 0, 0, 0, 0, 0, 1, 1]), "pad.pads")
        padded = g.op("Pad", rectified, pads, name="pad")
        starts = g.constant(np.array([1, 1]), "shift.starts")
        ends = g.constant(np.array([size + 1 for size in previous.spatial]), "shift.ends")
        axes = g.constant(np.array([2, 3]), "shift.axes")
        shifted = g.op("Slice", padded, starts, ends, axes, name="shift")
        odd = average_pool(shifted, 1, name="odd", stride=2)
        halves = (
            conv(even, filters // 2, 1, name="even/conv"),
            conv(odd, filters // 2, 1, name="odd/conv"),
        )
        joined = g.op("Concat", *halves, name="concat", axis=1)
        return batch_norm(joined, name="bn", scale=RELU, epsilon=_EPSILON)


def _squeeze(x: Tensor, filters: int, *, name: str) -> Tensor:
    """ReLU, 1x1 convolution, normalisation."""
    x = relu(x, name=f"{name}/relu")
    return conv_bn(x, filters, 1, name=name, activation=None, scale=RELU, epsilon=_EPSILON)


def _separable(x: Tensor, filters: int, kernel: int, *, name: str, stride: int = 1) -> Tensor:
    """ReLU, depthwise and 1x1 convolution, normalisation; twice, the stride in the first."""
    with x.graph.scope(name):
        for index, scale in enumerate((RELU, _SUMMAND), start=1):
            x = relu(x, name=f"relu{index}")
            x = conv(
                x,
                x.channels,
                kernel,
                name=f"depthwise{index}",
                stride=stride if index == 1 else 1,
                pads="same",
                group=x.channels,
            )
            x = conv_bn(
                x,
                filters,
                1,
                name=f"pointwise{index}",
                activation=None,
                scale=scale,
                epsilon=_EPSILON,
            )
    return x


def _average(x: Tensor, *, name: str, stride: int = 1) -> Tensor:
    return average_pool(x, 3, name=name, stride=stride, pads="same")


def _add(name: str, one: Tensor, other: Tensor) -> Tensor:
    return one.graph.op("Add", one, other, name=name)
