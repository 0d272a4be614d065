"""ShuffleNets: Ma et al., ShuffleNet V2, ECCV 2018."""

from __future__ import annotations

import numpy as np

from tvm_edge.zoo.calibration import LOGITS
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv_bn, gemm, global_pool, max_pool

__all__ = ["shufflenet_v2"]


def shufflenet_v2(g: Graph) -> None:
    """ShuffleNet V2 1x (table 5)."""
    x = conv_bn(g.data, g.channels(24), 3, name="conv1", stride=2, pads=1, activation="relu")
    x = max_pool(x, 3, name="pool1", stride=2, pads=1)
    for stage, (units, channels) in enumerate(((4, 116), (8, 232), (4, 464)), start=2):
        for unit in range(units):
            with g.scope(f"stage{stage}/unit{unit}"):
                x = _basic(x) if unit else _downsampling(x, g.channels(channels))
    x = conv_bn(x, g.channels(1024), 1, name="conv5", activation="relu")
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def _basic(x: Tensor) -> Tensor:
    """Figure 3c: half of the channels pass, the other half are convolved."""
    g, half = x.graph, x.channels // 2
    sizes = g.constant(np.array([half, half]), "split.sizes")
    kept, y = g.ops("Split", x, sizes, name="split", count=2, axis=1)
    return _shuffle(kept, _branch(y, half, stride=1))


def _downsampling(x: Tensor, channels: int) -> Tensor:
    """Figure 3d: two branches of stride 2, each of half of the `channels`."""
    return _shuffle(_separable(x, channels // 2, stride=2), _branch(x, channels // 2, stride=2))


def _branch(x: Tensor, channels: int, *, stride: int) -> Tensor:
    """1x1, then a separable convolution."""
    x = conv_bn(x, channels, 1, name="expand", activation="relu")
    with x.graph.scope("separable"):
        return _separable(x, channels, stride=stride)


def _separable(x: Tensor, channels: int, *, stride: int) -> Tensor:
    """Depthwise 3x3 without activation, then 1x1."""
    x = conv_bn(
        x,
        x.channels,
        3,
        name="depthwise",
        stride=stride,
        pads=1,
        group=x.channels,
        activation=None,
    )
    return conv_bn(x, channels, 1, name="pointwise", activation="relu")


def _shuffle(left: Tensor, right: Tensor) -> Tensor:
    """Join two halves and let their channels alternate."""
    g = left.graph
    x = g.op("Concat", left, right, name="concat", axis=1)
    height, width = x.spatial
    # 0 copies the batch.
    apart = g.constant(np.array([0, 2, x.channels // 2, height, width]), "shuffle/apart.shape")
    joined = g.constant(np.array([0, x.channels, height, width]), "shuffle/joined.shape")
    y = g.op("Reshape", x, apart, name="shuffle/apart")
    y = g.op("Transpose", y, name="shuffle/transpose", perm=[0, 2, 1, 3, 4])
    return g.op("Reshape", y, joined, name="shuffle/joined")
