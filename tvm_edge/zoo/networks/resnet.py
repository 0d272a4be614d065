"""Residual networks: He et al., Deep Residual Learning for Image Recognition, CVPR 2016."""

from __future__ import annotations

from tvm_edge.zoo.calibration import LINEAR, LOGITS, RESIDUAL
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv_bn, gemm, global_pool, max_pool, relu

__all__ = ["resnet50_v1"]


def resnet50_v1(g: Graph) -> None:
    """ResNet-50 as in the paper, table 1: a stage's stride is in its first 1x1 convolution.

    The variant with the stride in the 3x3 convolution ("v1.5", torchvision's) has the same
    parameters and 6 % more multiply-adds.
    """
    x = conv_bn(g.data, g.channels(64), 7, name="stem/conv", stride=2, pads=3, activation="relu")
    x = max_pool(x, 3, name="stem/pool", stride=2, pads=1)
    for stage, (blocks, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            with g.scope(f"stage{stage}/block{block}"):
                stride = 2 if block == 0 and stage > 1 else 1
                x = _bottleneck(x, channels, stride=stride, project=block == 0)
    logits = gemm(global_pool(x), 1000, name="classifier", scale=LOGITS)
    g.output("logits", logits, (g.batch, 1000))


def _bottleneck(x: Tensor, channels: int, *, stride: int, project: bool) -> Tensor:
    """1x1 to `channels`, 3x3, 1x1 to four times as many; with a projected shortcut if `project`."""
    g = x.graph
    inner, outer = g.channels(channels), g.channels(4 * channels)
    y = conv_bn(x, inner, 1, name="conv1", stride=stride, activation="relu")
    y = conv_bn(y, inner, 3, name="conv2", pads=1, activation="relu")
    y = conv_bn(y, outer, 1, name="conv3", activation=None, scale=RESIDUAL)
    if project:
        x = conv_bn(x, outer, 1, name="shortcut", stride=stride, activation=None, scale=LINEAR)
    return relu(g.op("Add", y, x, name="add"), name="relu")
