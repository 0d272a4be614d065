"""The layers of :mod:`benchmarks.gpu.layers` and :mod:`benchmarks.gpu.tiles`, and their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "LAYERS",
    "PRODUCTS",
    "SEEN",
    "UNSEEN",
    "UNSEEN_WORK_GROUPS",
    "WORK_GROUPS",
    "Layer",
    "Products",
    "layer_model",
]


@dataclass(frozen=True)
class Layer:
    """A convolution of a square image with a bias and a ReLU, padded to keep its size."""

    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1

    @property
    def padding(self) -> int:
        """On each side."""
        return self.kernel // 2 * self.dilation

    @property
    def result(self) -> int:
        """Side of the result."""
        window = self.dilation * (self.kernel - 1) + 1
        return (self.size + 2 * self.padding - window) // self.stride + 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the image, the filters and the bias."""
        return {
            "x": (1, self.channels, self.size, self.size),
            "w": (self.outputs, self.channels // self.groups, self.kernel, self.kernel),
            "b": (self.outputs,),
        }

    @property
    def flops(self) -> float:
        """Floating-point operations by the definition."""
        return 2.0 * self.result**2 * float(np.prod(self.shapes["w"]))

    def __str__(self) -> str:
        window = f"{self.kernel}×{self.kernel}/{self.stride}"
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        dilation = f", dilation {self.dilation}" if self.dilation > 1 else ""
        return f"{self.channels}×{self.size}² to {self.outputs}, {window}{groups}{dilation}"


@dataclass(frozen=True)
class Products:
    """The products of a Winograd convolution."""

    frequencies: int
    channels: int
    tiles: int
    outputs: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the transformed filters and images."""
        first = (self.frequencies, self.channels)
        return {"u": (*first, self.outputs), "v": (*first, self.tiles)}

    def __str__(self) -> str:
        return f"{self.frequencies} products {self.outputs}×{self.channels}×{self.tiles}"


# Of the networks of benchmarks.gpu.networks, which the constants of the estimate are fitted to …
SEEN = (
    Layer(64, 56, 64, 3),
    Layer(128, 28, 128, 3),
    Layer(256, 14, 256, 3),
    Layer(512, 7, 512, 3),
    Layer(256, 56, 64, 1),
    Layer(1024, 14, 256, 1),
    Layer(512, 7, 2048, 1),
    Layer(3, 224, 64, 7, 2),
    Layer(64, 224, 64, 3),
    Layer(256, 56, 256, 3),
    Layer(24, 56, 144, 1),
)
# … and of none of them.
UNSEEN = (
    Layer(48, 80, 96, 3),
    Layer(192, 20, 192, 3),
    Layer(80, 40, 200, 1),
    Layer(384, 10, 96, 5),
    Layer(16, 160, 32, 3, 2),
    Layer(640, 12, 640, 1),
    Layer(72, 33, 120, 1, 2),
)
# Fitted to as well.
PRODUCTS = (
    Products(36, 64, 3136, 64),
    Products(36, 128, 784, 128),
    Products(36, 256, 196, 256),
    Products(36, 512, 49, 512),
    Products(36, 512, 16, 512),
    Products(16, 512, 49, 512),
    Products(36, 64, 196, 64),
    Products(16, 128, 196, 128),
    Products(36, 96, 81, 160),
)
# Work-groups: the two of APSys'20, figure 5, and ten of the zoo.
WORK_GROUPS = (
    Layer(256, 56, 256, 3),
    Layer(128, 56, 128, 3, 1, 128),
    Layer(64, 56, 64, 3),
    Layer(128, 28, 128, 3),
    Layer(256, 14, 256, 3),
    Layer(256, 56, 64, 1),
    Layer(1024, 14, 256, 1),
    Layer(64, 112, 128, 3, 2),
    Layer(32, 112, 32, 3, 1, 32),
    Layer(144, 56, 144, 3, 2, 144),
    Layer(384, 14, 384, 3, 1, 384),
    Layer(960, 7, 960, 3, 1, 960),
)
UNSEEN_WORK_GROUPS = (
    Layer(96, 40, 160, 3),
    Layer(48, 73, 72, 3),
    Layer(320, 20, 320, 1),
    Layer(192, 28, 384, 3, 2),
    Layer(40, 90, 40, 3, 1, 40),
    Layer(240, 28, 240, 5, 1, 240),
    Layer(576, 19, 576, 3, 2, 576),
    Layer(72, 64, 72, 3, 1, 72),
)
# Layers against cuDNN: those, depthwise ones, groups, dilation.
LAYERS = (
    *SEEN,
    *UNSEEN,
    Layer(512, 28, 512, 3),
    Layer(512, 14, 512, 3),
    Layer(256, 56, 512, 1, 2),
    Layer(32, 112, 32, 3, 1, 32),
    Layer(144, 56, 144, 3, 2, 144),
    Layer(384, 14, 384, 3, 1, 384),
    Layer(960, 7, 960, 3, 1, 960),
    Layer(256, 28, 256, 3, 1, 32),
    Layer(256, 32, 256, 3, 1, 1, 2),
)


def layer_model(layer: Layer, copies: int = 0) -> Any:
    """The ONNX model of a layer.

    Parameters
    ----------
    layer : Layer
    copies : int
        So often the layer reads the image ``x``, each time with other filters, which are
        constants; 0: once, filters ``w`` and bias ``b`` are inputs.
    """
    from onnx import TensorProto, helper, numpy_helper

    floats, generator = TensorProto.FLOAT, np.random.default_rng(0)
    shapes = layer.shapes
    result = (1, layer.outputs, layer.result, layer.result)
    attributes = {
        "strides": [layer.stride] * 2,
        "pads": [layer.padding] * 4,
        "group": layer.groups,
        "dilations": [layer.dilation] * 2,
    }
    nodes, constants, outputs = [], [], []
    for i in range(max(copies, 1)):
        weights = (f"w{i}", f"b{i}") if copies else ("w", "b")
        for name, shape in zip(weights, (shapes["w"], shapes["b"]), strict=True):
            if copies:
                value = generator.standard_normal(shape).astype("float32")
                constants.append(numpy_helper.from_array(value, name))
        nodes.append(helper.make_node("Conv", ["x", *weights], [f"c{i}"], **attributes))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"y{i}"]))
        outputs.append(helper.make_tensor_value_info(f"y{i}", floats, result))
    given = ("x",) if copies else tuple(shapes)
    inputs = [helper.make_tensor_value_info(name, floats, shapes[name]) for name in given]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
