"""Dense networks: Huang et al., Densely Connected Convolutional Networks, CVPR 2017."""

from __future__ import annotations

from tvm_edge.zoo.calibration import LOGITS
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import (
    average_pool,
    conv,
    conv_bn,
    gemm,
    global_pool,
    max_pool,
    preactivate,
)

__all__ = ["densenet121"]

_GROWTH = 32


def densenet121(g: Graph) -> None:
    """DenseNet-121 (table 1), with bottlenecks and a compression of one half (DenseNet-BC)."""
    x = conv_bn(g.data, g.channels(64), 7, name="stem/conv", stride=2, pads=3, activation="relu")
    x = max_pool(x, 3, name="stem/pool", stride=2, pads=1)
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        if block > 1:
            with g.scope(f"transition{block - 1}"):
                x = conv(preactivate(x, name="pre"), x.channels // 2, 1, name="conv")
                x = average_pool(x, 2, name="pool", stride=2)
        for layer in range(layers):
            with g.scope(f"block{block}/layer{layer}"):
                x = _dense(x)
    x = preactivate(x, name="head")
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def _dense(x: Tensor) -> Tensor:
    """1x1 to four times the growth and 3x3 to the growth, joined to all that was before."""
    g = x.graph
    y = preactivate(x, name="pre")
    y = conv_bn(y, g.channels(4 * _GROWTH), 1, name="conv1", activation="relu")
    y = conv(y, g.channels(_GROWTH), 3, name="conv2", pads=1)
    return g.op("Concat", x, y, name="concat", axis=1)
