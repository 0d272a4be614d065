"""Residual networks: He et al., CVPR 2016 (v1); He et al., Identity Mappings, ECCV 2016 (v2)."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_edge.zoo.calibration import LINEAR, LOGITS, RESIDUAL
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import (
    conv,
    conv_bn,
    gemm,
    global_pool,
    max_pool,
    preactivate,
    relu,
)

__all__ = ["resnet50_v1", "resnet50_v1_features", "resnet50_v2"]

# Blocks of each stage, and channels inside one: ResNet-50 of v1, table 1.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def resnet50_v1(g: Graph) -> None:
    """ResNet-50 as in the paper, table 1: a stage's stride is in its first 1x1 convolution.

    The variant with the stride in the 3x3 convolution ("v1.5", torchvision's) has the same
    parameters and 6 % more multiply-adds.
    """
    x = resnet50_v1_features(g)[len(_STAGES)]
    logits = gemm(global_pool(x), 1000, name="classifier", scale=LOGITS)
    g.output("logits", logits, (g.batch, 1000))


def resnet50_v1_features(g: Graph, stages: int = len(_STAGES)) -> dict[int, Tensor]:
    """Add ResNet-50 up to a stage, and return the output of each stage, numbered from 1."""
    features = {}
    x = _stem(g)
    for stage, scope, channels, stride, project in _blocks():
        if stage <= stages:
            with g.scope(scope):
                x = _bottleneck(x, channels, stride=stride, project=project)
            features[stage] = x
    return features


def resnet50_v2(g: Graph) -> None:
    """ResNet-50 of full pre-activation (figure 4e), as in MXNet's model zoo and ONNX's.

    A stage's stride is in its first 3x3 convolution; a projected shortcut reads what the branch
    does, after the activation. MXNet's normalisation of the picture, which trains nothing, is left
    out.
    """
    x = _stem(g)
    for _, scope, channels, stride, project in _blocks():
        with g.scope(scope):
            x = _preactivated(x, channels, stride=stride, project=project)
    x = preactivate(x, name="head")
    logits = gemm(global_pool(x), 1000, name="classifier", scale=LOGITS)
    g.output("logits", logits, (g.batch, 1000))


def _stem(g: Graph) -> Tensor:
    """7x7 and a pool, each of stride 2."""
    x = conv_bn(g.data, g.channels(64), 7, name="stem/conv", stride=2, pads=3, activation="relu")
    return max_pool(x, 3, name="stem/pool", stride=2, pads=1)


def _blocks() -> Iterator[tuple[int, str, int, int, bool]]:
    """Stage, scope, inner channels and stride of each block, and if its shortcut is projected."""
    for stage, (blocks, channels) in enumerate(_STAGES, start=1):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 1 else 1
            yield stage, f"stage{stage}/block{block}", channels, stride, block == 0


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


def _preactivated(x: Tensor, channels: int, *, stride: int, project: bool) -> Tensor:
    """The bottleneck with each normalisation and activation before its convolution."""
    g = x.graph
    inner, outer = g.channels(channels), g.channels(4 * channels)
    y = preactivate(x, name="pre")
    if project:
        x = conv(y, outer, 1, name="shortcut", stride=stride)
    y = conv_bn(y, inner, 1, name="conv1", activation="relu")
    y = conv_bn(y, inner, 3, name="conv2", stride=stride, pads=1, activation="relu")
    y = conv(y, outer, 1, name="conv3")
    return g.op("Add", y, x, name="add")
