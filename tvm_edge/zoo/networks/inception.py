"""Inception networks.

Szegedy et al., Going Deeper with Convolutions, CVPR 2015 (GoogLeNet); Szegedy et al., Rethinking
the Inception Architecture, CVPR 2016 (v3).
"""

from __future__ import annotations

from tvm_edge.zoo.calibration import LOGITS
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import average_pool, concat, conv_bn, gemm, global_pool, max_pool

__all__ = ["googlenet", "inception_v3"]

# Output channels and kernel of a convolution.
_Layer = tuple[int, int | tuple[int, int]]

_ROW, _COLUMN = (1, 7), (7, 1)

# Per stage and module the columns of GoogLeNet's table 1: 1x1; 3x3 reduce and 3x3; 5x5 reduce and
# 5x5; pool projection.
_GOOGLENET = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(g: Graph) -> None:
    """GoogLeNet as in torchvision and TensorFlow's models.

    It differs from table 1 as they do: convolutions are normalised, which replaces the local
    response normalisation, and where the table has a 5x5 they have a 3x3. The auxiliary
    classifiers, which only training uses, are left out.
    """
    x = _conv(g.data, 64, 7, name="conv1", stride=2)
    x = max_pool(x, 3, name="pool1", stride=2, ceil_mode=True)
    x = _conv(_conv(x, 64, 1, name="conv2"), 192, 3, name="conv3")
    x = max_pool(x, 3, name="pool2", stride=2, ceil_mode=True)
    for stage, modules in enumerate(_GOOGLENET, start=3):
        for letter, columns in zip("abcde", modules, strict=False):
            with g.scope(f"inception{stage}{letter}"):
                x = _inception(x, *columns)
        if stage < 5:
            x = max_pool(x, 3 if stage == 3 else 2, name=f"pool{stage}", stride=2, ceil_mode=True)
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def _inception(
    x: Tensor, single: int, reduce3: int, three: int, reduce5: int, five: int, pooled: int
) -> Tensor:
    """Figure 2b of GoogLeNet's paper."""
    return concat(
        _chain(x, "single", (single, 1)),
        _chain(x, "three", (reduce3, 1), (three, 3)),
        _chain(x, "five", (reduce5, 1), (five, 3)),
        _conv(max_pool(x, 3, name="pool", stride=1, pads=1), pooled, 1, name="pooled"),
    )


def inception_v3(g: Graph) -> None:
    """Inception v3 without the auxiliary classifier, which only training uses.

    Table 1 with figures 5 to 7 of its paper leaves details open; they are those of the released
    model, as in torchvision: every convolution normalised, padding counted by the average pools.
    """
    x = _conv(g.data, 32, 3, name="conv1a", stride=2, pads=0)
    x = _conv(x, 32, 3, name="conv2a", pads=0)
    x = _conv(x, 64, 3, name="conv2b")
    x = max_pool(x, 3, name="pool1", stride=2)
    x = _conv(x, 80, 1, name="conv3b")
    x = _conv(x, 192, 3, name="conv4a", pads=0)
    x = max_pool(x, 3, name="pool2", stride=2)
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        with g.scope(f"mixed5{letter}"):
            x = _grid35(x, pooled)
    with g.scope("mixed6a"):
        x = _reduce35(x)
    for letter, inner in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        with g.scope(f"mixed6{letter}"):
            x = _grid17(x, inner)
    with g.scope("mixed7a"):
        x = _reduce17(x)
    for letter in "bc":
        with g.scope(f"mixed7{letter}"):
            x = _grid8(x)
    g.output("logits", gemm(global_pool(x), 1000, name="classifier", scale=LOGITS), (g.batch, 1000))


def _grid35(x: Tensor, pooled: int) -> Tensor:
    """Figure 5: the 5x5 of the first Inception beside two 3x3."""
    return concat(
        _chain(x, "single", (64, 1)),
        _chain(x, "five", (48, 1), (64, 5)),
        _chain(x, "double", (64, 1), (96, 3), (96, 3)),
        _pooled(x, pooled),
    )


def _reduce35(x: Tensor) -> Tensor:
    """Figure 10 on the 35x35 grid: convolutions and a pool of stride 2 side by side."""
    return concat(
        _conv(x, 384, 3, name="three", stride=2, pads=0),
        _conv(_chain(x, "double", (64, 1), (96, 3)), 96, 3, name="double/last", stride=2, pads=0),
        max_pool(x, 3, name="pool", stride=2),
    )


def _grid17(x: Tensor, inner: int) -> Tensor:
    """Figure 6 with n = 7: each 7x7 as a row and a column."""
    return concat(
        _chain(x, "single", (192, 1)),
        _chain(x, "seven", (inner, 1), (inner, _ROW), (192, _COLUMN)),
        _chain(
            x,
            "double",
            (inner, 1),
            (inner, _COLUMN),
            (inner, _ROW),
            (inner, _COLUMN),
            (192, _ROW),
        ),
        _pooled(x, 192),
    )


def _reduce17(x: Tensor) -> Tensor:
    """The reduction of the 17x17 grid."""
    seven = _chain(x, "seven", (192, 1), (192, _ROW), (192, _COLUMN))
    return concat(
        _conv(_chain(x, "three", (192, 1)), 320, 3, name="three/last", stride=2, pads=0),
        _conv(seven, 192, 3, name="seven/last", stride=2, pads=0),
        max_pool(x, 3, name="pool", stride=2),
    )


def _grid8(x: Tensor) -> Tensor:
    """Figure 7: rows and columns side by side, for wide features."""
    three = _chain(x, "three", (384, 1))
    double = _chain(x, "double", (448, 1), (384, 3))
    return concat(
        _chain(x, "single", (320, 1)),
        _conv(three, 384, (1, 3), name="three/row"),
        _conv(three, 384, (3, 1), name="three/column"),
        _conv(double, 384, (1, 3), name="double/row"),
        _conv(double, 384, (3, 1), name="double/column"),
        _pooled(x, 192),
    )


def _pooled(x: Tensor, channels: int) -> Tensor:
    return _conv(average_pool(x, 3, name="pool", stride=1, pads=1), channels, 1, name="pooled")


def _chain(x: Tensor, name: str, *layers: _Layer) -> Tensor:
    """Convolutions one after the other that keep height and width."""
    for index, (channels, kernel) in enumerate(layers):
        x = _conv(x, channels, kernel, name=f"{name}/conv{index}")
    return x


def _conv(
    x: Tensor,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    name: str,
    stride: int = 1,
    pads: int | None = None,
) -> Tensor:
    """Convolve, normalise, rectify; by default padded by half the kernel."""
    height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    return conv_bn(
        x,
        x.graph.channels(channels),
        kernel,
        name=name,
        stride=stride,
        pads=(height // 2, width // 2) if pads is None else pads,
        activation="relu",
        epsilon=1e-3,
    )
