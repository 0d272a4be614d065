"""Layers with calibrated weights, as functions from tensor to tensor."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from tvm_edge.zoo.calibration import LINEAR, RELU, RELU6, Scale, fit, he_normal, measure
from tvm_edge.zoo.evaluate import evaluate
from tvm_edge.zoo.graph import Tensor

__all__ = [
    "average_pool",
    "batch_norm",
    "concat",
    "conv",
    "conv_bn",
    "gemm",
    "global_pool",
    "leaky_relu",
    "max_pool",
    "preactivate",
    "relu",
    "relu6",
]


# One number for height and width, or one for each.
_Pair: TypeAlias = int | tuple[int, int]


def conv(
    x: Tensor,
    channels: int,
    kernel: _Pair,
    *,
    name: str,
    stride: int = 1,
    pads: _Pair | Literal["same"] = 0,
    dilation: int = 1,
    group: int = 1,
    bias: Scale | None = None,
) -> Tensor:
    """Convolve.

    Parameters
    ----------
    x : Tensor
        ``[N, C, H, W]``.
    channels : int
        Output channels.
    kernel : int or tuple[int, int]
        Height and width, or one number for both.
    stride, dilation, group : int
        As in ONNX; height and width alike.
    name : str
        Name of the node.
    pads : int, tuple[int, int] or "same"
        The same on every side; one number for top and bottom, one for the sides; or TensorFlow's
        SAME: ``ceil(size / stride)`` outputs, an odd pixel of padding at the bottom and right.
    bias : Scale or None
        The scale that weights and bias bring the output to. None for a convolution without bias,
        which a batch normalisation follows.

    Returns
    -------
    Tensor
        ``[N, channels, H', W']``.
    """
    g, rng = x.graph, x.graph.random(name)
    kernel = _pair(kernel)
    attributes: dict[str, Any] = {
        "kernel_shape": list(kernel),
        "strides": [stride, stride],
        "pads": _pads(pads, x.spatial, kernel, stride, dilation),
        "group": group,
    }
    if dilation != 1:
        attributes["dilations"] = [dilation, dilation]
    weight = he_normal((channels, x.channels // group, *kernel), x.calibration, rng)
    if bias is None:
        return g.op("Conv", x, g.constant(weight, f"{name}.weight"), name=name, **attributes)
    weight = bias.tie(weight)
    (raw,) = evaluate("Conv", [x.calibration, weight.astype(np.float64)], **attributes)
    weight, offset = fit(weight, raw, bias, rng)
    w, b = g.constant(weight, f"{name}.weight"), g.constant(offset, f"{name}.bias")
    return g.op("Conv", x, w, b, name=name, **attributes)


def gemm(x: Tensor, features: int, *, name: str, scale: Scale) -> Tensor:
    """Fully connected layer ``[N, C]`` to ``[N, features]``, brought to `scale`."""
    g, rng = x.graph, x.graph.random(name)
    weight = he_normal((features, x.channels), x.calibration, rng)
    (raw,) = evaluate("Gemm", [x.calibration, weight], transB=1)
    weight, offset = fit(weight, raw, scale, rng)
    w, b = g.constant(weight, f"{name}.weight"), g.constant(offset, f"{name}.bias")
    return g.op("Gemm", x, w, b, name=name, transB=1)


def batch_norm(x: Tensor, *, name: str, scale: Scale, epsilon: float = 1e-5) -> Tensor:
    """Batch normalisation with the statistics of `x`, then brought to `scale`."""
    g = x.graph
    statistics = measure(x.calibration)
    gamma, beta = scale.sample(x.channels, g.random(name))
    parameters = {
        "gamma": gamma,
        "beta": beta,
        "mean": statistics.mean,
        "variance": statistics.variance,
    }
    constants = [g.constant(value, f"{name}.{key}") for key, value in parameters.items()]
    return g.op("BatchNormalization", x, *constants, name=name, epsilon=epsilon)


def conv_bn(
    x: Tensor,
    channels: int,
    kernel: _Pair,
    *,
    name: str,
    activation: Literal["relu", "relu6"] | None,
    scale: Scale | None = None,
    stride: int = 1,
    pads: _Pair | Literal["same"] = 0,
    dilation: int = 1,
    group: int = 1,
    epsilon: float = 1e-5,
) -> Tensor:
    """Convolution ``name``, ``name/bn`` and ``name/<activation>``, as in :func:`conv`.

    `scale` is what the normalisation brings its output to, by default what suits `activation`.
    """
    x = conv(
        x, channels, kernel, name=name, stride=stride, pads=pads, dilation=dilation, group=group
    )
    suits = {"relu": RELU, "relu6": RELU6, None: LINEAR}[activation]
    x = batch_norm(x, name=f"{name}/bn", scale=scale or suits, epsilon=epsilon)
    if activation == "relu":
        return relu(x, name=f"{name}/relu")
    return relu6(x, name=f"{name}/relu6") if activation == "relu6" else x


def preactivate(x: Tensor, *, name: str) -> Tensor:
    """Normalise and rectify what a convolution is to read: ``name/bn`` and ``name/relu``."""
    return relu(batch_norm(x, name=f"{name}/bn", scale=RELU), name=f"{name}/relu")


def relu(x: Tensor, *, name: str) -> Tensor:
    """Rectify."""
    return x.graph.op("Relu", x, name=name)


def leaky_relu(x: Tensor, *, name: str, alpha: float) -> Tensor:
    """Rectify, negative numbers scaled by `alpha` instead of dropped."""
    return x.graph.op("LeakyRelu", x, name=name, alpha=alpha)


def relu6(x: Tensor, *, name: str) -> Tensor:
    """Clip to [0, 6], as exporters write ReLU6."""
    g = x.graph
    low, high = g.constant(0.0, f"{name}.min"), g.constant(6.0, f"{name}.max")
    return g.op("Clip", x, low, high, name=name)


def concat(*branches: Tensor) -> Tensor:
    """Side by side along the channels."""
    return branches[0].graph.op("Concat", *branches, name="concat", axis=1)


def max_pool(
    x: Tensor,
    kernel: int,
    *,
    name: str,
    stride: int,
    pads: int | Literal["same"] = 0,
    ceil_mode: bool = False,
) -> Tensor:
    """Max pooling; `ceil_mode` keeps a last window that hangs over the edge, as Caffe does."""
    return x.graph.op(
        "MaxPool",
        x,
        name=name,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=_pads(pads, x.spatial, (kernel, kernel), stride),
        ceil_mode=int(ceil_mode),
    )


def average_pool(
    x: Tensor, kernel: int, *, name: str, stride: int, pads: int | Literal["same"] = 0
) -> Tensor:
    """Average pooling; padding counts as zeros, but not that of TensorFlow's SAME."""
    return x.graph.op(
        "AveragePool",
        x,
        name=name,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=_pads(pads, x.spatial, (kernel, kernel), stride),
        count_include_pad=int(pads != "same"),
    )


def global_pool(x: Tensor) -> Tensor:
    """Average over height and width, ``[N, C, H, W]`` to ``[N, C]``: ``pool`` and ``flatten``."""
    g = x.graph
    return g.op("Flatten", g.op("GlobalAveragePool", x, name="pool"), name="flatten", axis=1)


def _pair(value: _Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _pads(
    pads: _Pair | Literal["same"],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    dilation: int = 1,
) -> list[int]:
    """ONNX pads ``[top, left, bottom, right]``; those of TensorFlow's SAME follow the `size`."""
    if pads != "same":
        return [*_pair(pads)] * 2
    extents = [(k - 1) * dilation + 1 for k in kernel]
    outputs = [-(-s // stride) for s in size]
    total = [
        max(0, (o - 1) * stride + e - s) for o, e, s in zip(outputs, extents, size, strict=True)
    ]
    return [t // 2 for t in total] + [t - t // 2 for t in total]
