"""MobileNets: Howard et al., arXiv:1704.04861 (v1); Sandler et al., CVPR 2018 (v2)."""

from __future__ import annotations

from typing import Literal, TypedDict

from tvm_edge.zoo.calibration import LOGITS, RESIDUAL
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv_bn, gemm, global_pool

__all__ = [
    "TENSORFLOW_STYLE",
    "mobilenet_v1",
    "mobilenet_v1_features",
    "mobilenet_v2",
    "mobilenet_v2_features",
]

# Output channels and stride of the 13 separable convolutions: v1, table 1.
_V1 = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
# Expansion, output channels, blocks and stride of the first block: v2, table 2.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class _Style(TypedDict):
    activation: Literal["relu", "relu6"] | None
    pads: int | Literal["same"]
    epsilon: float


# How TensorFlow's MobileNets and detectors convolve, and torchvision's MobileNetV2.
TENSORFLOW_STYLE = _Style(activation="relu6", pads="same", epsilon=1e-3)
_TORCHVISION_STYLE = _Style(activation="relu6", pads=1, epsilon=1e-5)


def mobilenet_v1(g: Graph) -> None:
    """MobileNet 1.0, padded and normalised as in TensorFlow.

    A `width` is the paper's width multiplier: it scales every layer but the classifier.
    """
    x = mobilenet_v1_features(g)[len(_V1)]
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def mobilenet_v1_features(g: Graph) -> dict[int, Tensor]:
    """Add the backbone of MobileNetV1, padded as in TensorFlow.

    Returns
    -------
    dict[int, Tensor]
        The output of each separable convolution, numbered from 1 as in TensorFlow's
        ``Conv2d_<n>_pointwise``.
    """
    features = {}
    with g.scope("backbone"):
        x = conv_bn(g.data, g.channels(32), 3, name="conv0", stride=2, **TENSORFLOW_STYLE)
        for index, (channels, stride) in enumerate(_V1, start=1):
            with g.scope(f"conv{index}"):
                x = conv_bn(
                    x,
                    x.channels,
                    3,
                    name="depthwise",
                    stride=stride,
                    group=x.channels,
                    **TENSORFLOW_STYLE,
                )
                x = conv_bn(x, g.channels(channels), 1, name="pointwise", **TENSORFLOW_STYLE)
            features[index] = x
    return features


def mobilenet_v2(g: Graph) -> None:
    """MobileNetV2, padded symmetrically as in torchvision.

    As published (section 4.1 and the released models), a `width` below 1 leaves the last
    convolution at 1280 channels.
    """
    x = mobilenet_v2_features(g, _TORCHVISION_STYLE)
    x = conv_bn(x, max(1280, g.channels(1280)), 1, name="head", activation="relu6")
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def mobilenet_v2_features(g: Graph, style: _Style, *, output_stride: int = 32) -> Tensor:
    """Add MobileNetV2 up to the last bottleneck, of 320 channels.

    Where the stride would pass `output_stride`, what follows is dilated instead, and keeps its
    weights (Chen et al., Rethinking Atrous Convolution, arXiv:1706.05587, section 3.1).
    """
    x = conv_bn(g.data, g.channels(32), 3, name="stem", stride=2, **style)
    reached, dilation = 2, 1
    for stage, (expansion, channels, blocks, first_stride) in enumerate(_V2, start=1):
        for block in range(blocks):
            stride = wanted = first_stride if block == 0 else 1
            if reached * wanted > output_stride:
                stride = 1
            with g.scope(f"stage{stage}/block{block}"):
                x = _inverted_residual(
                    x,
                    g.channels(channels),
                    expansion,
                    stride=stride,
                    dilation=dilation,
                    style=style,
                )
            reached *= stride
            dilation *= wanted // stride
    return x


def _inverted_residual(
    x: Tensor, channels: int, expansion: int, *, stride: int, dilation: int, style: _Style
) -> Tensor:
    """1x1 up by `expansion`, depthwise 3x3, linear 1x1 down; added to `x` where shapes agree."""
    g, hidden = x.graph, x.channels * expansion
    residual = stride == 1 and channels == x.channels
    y = x
    if expansion != 1:
        y = conv_bn(y, hidden, 1, name="expand", activation="relu6", epsilon=style["epsilon"])
    y = conv_bn(
        y,
        hidden,
        3,
        name="depthwise",
        stride=stride,
        dilation=dilation,
        group=hidden,
        **style,
    )
    y = conv_bn(
        y,
        channels,
        1,
        name="project",
        activation=None,
        scale=RESIDUAL if residual else None,
        epsilon=style["epsilon"],
    )
    return g.op("Add", x, y, name="add") if residual else y
