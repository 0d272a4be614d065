"""The detector in PyTorch: a list of layers, so that :mod:`export` writes the same list as ONNX.

MobileNetV1's blocks (a depthwise 3x3 and a pointwise convolution) down to strides 8, 16 and 32;
over each of the three maps a 3x3 convolution and SSD's two 3x3 predictors. About 0.41 million
parameters and 0.1 billion operations a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tvm_edge.zoo.anchors import ssd_anchors
from tvm_edge.zoo.shapes import CLASSES, SIZE

LABELS = 1 + len(CLASSES)  # the first is the background
MAP_SIZES = (SIZE // 8, SIZE // 16, SIZE // 32)
# Sizes in pixels of the anchors of a cell, map by map: steps of about 1.3.
ANCHOR_SIZES = ((11, 15, 20), (26, 34, 44), (56, 70, 88))


@dataclass(frozen=True)
class Layer:
    """A convolution with batch normalisation and ReLU; `depthwise` ones keep their channels."""

    name: str
    inner: int
    outer: int
    kernel: int = 3
    stride: int = 1
    depthwise: bool = False


def separable(name: str, inner: int, outer: int, stride: int = 1) -> list[Layer]:
    """A block of MobileNetV1."""
    return [
        Layer(f"{name}/depthwise", inner, inner, stride=stride, depthwise=True),
        Layer(f"{name}/pointwise", inner, outer, kernel=1),
    ]


# What leads from the picture, or the stage before, to each map.
STAGES = (
    [
        Layer("stem", 3, 16, stride=2),
        *separable("block1", 16, 32),
        *separable("block2", 32, 64, stride=2),
        *separable("block3", 64, 64),
        *separable("block4", 64, 96, stride=2),
        *separable("block5", 96, 96),
        *separable("block6", 96, 96),
    ],
    [
        *separable("block7", 96, 128, stride=2),
        *separable("block8", 128, 128),
        *separable("block9", 128, 128),
    ],
    [*separable("block10", 128, 160, stride=2), *separable("block11", 160, 160)],
)
NECKS = (
    Layer("neck0", 96, 64),
    Layer("neck1", 128, 64),
    Layer("neck2", 160, 64),
)


def anchors() -> NDArray[np.float32]:
    """Centre y, centre x, height and width of every anchor: ``[1008, 4]``."""
    shapes = [[(size / SIZE, 1.0) for size in sizes] for sizes in ANCHOR_SIZES]
    return ssd_anchors([(size, size) for size in MAP_SIZES], (SIZE, SIZE), shapes)


class Unit(nn.Module):
    """One :class:`Layer`."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        groups = layer.inner if layer.depthwise else 1
        self.conv = nn.Conv2d(
            layer.inner,
            layer.outer,
            layer.kernel,
            layer.stride,
            layer.kernel // 2,
            groups=groups,
            bias=False,
        )
        self.norm = nn.BatchNorm2d(layer.outer)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Detector(nn.Module):
    """Pictures ``[N, 3, 128, 128]`` to logits ``[N, 1008, 7]`` and encodings ``[N, 1008, 4]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(*(Unit(layer) for layer in stage)) for stage in STAGES
        )
        self.necks = nn.ModuleList(Unit(layer) for layer in NECKS)
        self.labels = nn.ModuleList(
            nn.Conv2d(neck.outer, len(sizes) * LABELS, 3, padding=1)
            for neck, sizes in zip(NECKS, ANCHOR_SIZES, strict=True)
        )
        self.encodings = nn.ModuleList(
            nn.Conv2d(neck.outer, len(sizes) * 4, 3, padding=1)
            for neck, sizes in zip(NECKS, ANCHOR_SIZES, strict=True)
        )

    def maps(self, x: Tensor) -> Iterator[Tensor]:
        """What the predictors look at."""
        for stage, neck in zip(self.stages, self.necks, strict=True):
            x = stage(x)
            yield neck(x)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        labels, encodings = [], []
        for x_, label, encoding in zip(self.maps(x), self.labels, self.encodings, strict=True):
            labels.append(label(x_).permute(0, 2, 3, 1).reshape(len(x), -1, LABELS))
            encodings.append(encoding(x_).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
        return torch.cat(labels, 1), torch.cat(encodings, 1)
