"""DeepLabV3: Chen et al., Rethinking Atrous Convolution, arXiv:1706.05587."""

from __future__ import annotations

import numpy as np

from tvm_edge.zoo.calibration import LOGITS
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv, conv_bn
from tvm_edge.zoo.networks.mobilenet import TENSORFLOW_STYLE, mobilenet_v2_features

__all__ = ["deeplab_v3"]

_CLASSES = 21  # of Pascal VOC, with the background as class 0


def deeplab_v3(g: Graph) -> None:
    """Mobile DeepLabV3 of the MobileNetV2 paper, section 6.3, as TensorFlow's
    ``deeplabv3_mnv2_pascal``: output stride 16, image pooling, no other atrous branches.

    The outputs are ``logits`` ``[N, 21, height, width]`` and ``segmentation`` int64
    ``[N, height, width]``, the class of each pixel.
    """
    x = mobilenet_v2_features(g, TENSORFLOW_STYLE, output_stride=16)
    channels = g.channels(256)
    pooled = g.op("GlobalAveragePool", x, name="pool")
    pooled = conv_bn(pooled, channels, 1, name="pool/conv", activation="relu")
    pooled = _resize(pooled, channels, x.spatial, name="pool/resize")
    x = conv_bn(x, channels, 1, name="point", activation="relu")
    x = g.op("Concat", pooled, x, name="concat", axis=1)
    x = conv_bn(x, channels, 1, name="fuse", activation="relu")
    x = conv(x, _CLASSES, 1, name="classifier", bias=LOGITS).detach()
    size = g.data.spatial
    logits = _resize(x, _CLASSES, size, name="resize")
    g.output("logits", logits, (g.batch, _CLASSES, *size))
    classes = g.op("ArgMax", logits, name="segmentation", axis=1, keepdims=0)
    g.output("segmentation", classes, (g.batch, *size), np.int64)


def _resize(x: Tensor, channels: int, size: tuple[int, int], *, name: str) -> Tensor:
    """Bilinear, corners on corners, as TensorFlow's DeepLab."""
    g = x.graph
    sizes = g.constant(np.array([g.batch, channels, *size]), f"{name}.sizes")
    return g.op(
        "Resize",
        x,
        None,
        None,
        sizes,
        name=name,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
