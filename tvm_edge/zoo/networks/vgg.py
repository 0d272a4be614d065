"""VGG networks: Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015."""

from __future__ import annotations

from tvm_edge.zoo.calibration import LOGITS, RELU
from tvm_edge.zoo.graph import Graph
from tvm_edge.zoo.layers import conv, gemm, max_pool, relu

__all__ = ["vgg16", "vgg19"]

_CHANNELS = (64, 128, 256, 512, 512)


def vgg16(g: Graph) -> None:
    """VGG-16: configuration D of table 1.

    The first fully connected layer reads the whole last map, 7x7 at the published size, so its
    weights follow the image size.
    """
    _vgg(g, (2, 2, 3, 3, 3))


def vgg19(g: Graph) -> None:
    """VGG-19: configuration E of table 1; otherwise as :func:`vgg16`."""
    _vgg(g, (2, 2, 4, 4, 4))


def _vgg(g: Graph, depths: tuple[int, ...]) -> None:
    """Stages of `depths` 3x3 convolutions and a pool each, then three fully connected layers."""
    x = g.data
    for stage, (depth, channels) in enumerate(zip(depths, _CHANNELS, strict=True), start=1):
        for index in range(1, depth + 1):
            name = f"conv{stage}_{index}"
            x = conv(x, g.channels(channels), 3, name=name, pads=1, bias=RELU)
            x = relu(x, name=f"{name}/relu")
        x = max_pool(x, 2, name=f"pool{stage}", stride=2)
    x = g.op("Flatten", x, name="flatten", axis=1)
    for name in ("fc6", "fc7"):
        x = relu(gemm(x, g.channels(4096), name=name, scale=RELU), name=f"{name}/relu")
    g.output("logits", gemm(x, 1000, name="fc8", scale=LOGITS), (g.batch, 1000))
