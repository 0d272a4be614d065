"""Cases of matrix products, attention and convolutions for ``cpu_kernels``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from benchmarks.cpu.kernel_cases import Case, Nodes, model, uniform

__all__ = ["CASES"]


def _matmul(shape: Sequence[int], columns: int, act: str = "") -> onnx.ModelProto:
    nodes: list[Any] = [("MatMul", ["x", "w"], ["m"], {}), ("Add", ["m", "b"], ["y"], {})]
    if act:
        nodes[1:] = [("Add", ["m", "b"], ["a"], {}), (act, ["a"], ["y"], {})]
    weights = {"w": uniform(shape[-1], columns), "b": uniform(columns)}
    return model(nodes, {"x": shape}, weights)


def _gemm(depth: int, columns: int, transposed: int) -> onnx.ModelProto:
    nodes: Nodes = [("Gemm", ["x", "w", "b"], ["y"], {"transB": transposed})]
    shape = (columns, depth) if transposed else (depth, columns)
    return model(nodes, {"x": (1, depth)}, {"w": uniform(*shape), "b": uniform(columns)})


def _batched(a: Sequence[int], b: Sequence[int]) -> onnx.ModelProto:
    return model([("MatMul", ["a", "b"], ["y"], {})], {"a": a, "b": b})


def _einsum(equation: str, a: Sequence[int], b: Sequence[int]) -> onnx.ModelProto:
    return model([("Einsum", ["a", "b"], ["y"], {"equation": equation})], {"a": a, "b": b})


def _attention(heads: int, rows: int, columns: int, depth: int, batch: int = 1) -> onnx.ModelProto:
    nodes: Nodes = [
        ("Transpose", ["k"], ["t"], {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "t"], ["s"], {}),
        ("Mul", ["s", "scale"], ["m"], {}),
        ("Softmax", ["m"], ["p"], {"axis": -1}),
        ("MatMul", ["p", "v"], ["y"], {}),
    ]
    own, other = (batch, heads, rows, depth), (batch, heads, columns, depth)
    return model(nodes, {"q": own, "k": other, "v": other}, {"scale": np.float32(depth**-0.5)})


def _conv(
    channels: int, filters: int, kernel: int, size: int, stride: int, dilation: int, group: int
) -> onnx.ModelProto:
    attributes = {
        "strides": [stride] * 2,
        "dilations": [dilation] * 2,
        "pads": [dilation * (kernel // 2)] * 4,
        "group": group,
    }
    weights = {"w": uniform(filters, channels // group, kernel, kernel), "b": uniform(filters)}
    nodes: Nodes = [("Conv", ["x", "w", "b"], ["y"], attributes)]
    return model(nodes, {"x": (1, channels, size, size)}, weights)


def _transposed(
    channels: int, filters: int, kernel: int, size: int, stride: int, pad: int, more: int
) -> onnx.ModelProto:
    attributes = {
        "strides": [stride] * 2,
        "pads": [pad] * 4,
        "output_padding": [more] * 2,
    }
    weights = {"w": uniform(channels, filters, kernel, kernel), "b": uniform(filters)}
    nodes: Nodes = [("ConvTranspose", ["x", "w", "b"], ["y"], attributes)]
    return model(nodes, {"x": (1, channels, size, size)}, weights)


def _padded(channels: int, filters: int, size: int, stride: int, group: int) -> onnx.ModelProto:
    """A convolution after a Pad of one side, as TensorFlow's exporters write it."""
    nodes: Nodes = [
        ("Pad", ["x", "pads"], ["p"], {}),
        ("Conv", ["p", "w"], ["y"], {"strides": [stride] * 2, "group": group}),
    ]
    weights = {
        "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
        "w": uniform(filters, channels // group, 3, 3),
    }
    return model(nodes, {"x": (1, channels, size, size)}, weights)


def _text(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


_MATMULS: Sequence[tuple[Sequence[int], int, str]] = (
    *(((1, 7, 7, 768), 3072, act) for act in ("", "Gelu")),
    *(((1, 197, 768), 3072, act) for act in ("", "Gelu")),
    *(((rows, 768), 768, "") for rows in (1, 2, 4, 8, 17, 32, 64, 100, 200)),
    ((49, 768), 3072, ""),
    ((1, 197, 3072), 768, ""),
    ((3136, 96), 288, ""),
    ((784, 192), 768, ""),
    ((4, 49, 384), 1152, ""),
    ((31, 65), 77, ""),
)
_EINSUMS = (
    ("b h i d, b h j d -> b h i j", (64, 2, 49, 32), (64, 2, 49, 32)),
    ("bhij,bhjd->bhid", (64, 2, 49, 49), (64, 2, 49, 32)),
    ("bnhd,bmhd->bhnm", (1, 197, 12, 64), (1, 197, 12, 64)),
    ("bqc,bchw->bqhw", (1, 100, 256), (1, 256, 32, 32)),
    ("bhwc,hkc->bhwk", (8, 14, 14, 64), (14, 14, 64)),
)
_CONVS = (
    *((960, 256, 3, 16, 1, dilation, 1) for dilation in (1, 6, 12, 36)),
    (256, 256, 3, 33, 1, 18, 1),
    (96, 96, 7, 56, 1, 1, 96),
    (384, 384, 7, 14, 1, 1, 384),
    (768, 768, 7, 7, 1, 1, 768),
    (240, 240, 5, 14, 1, 1, 240),
    (960, 960, 5, 7, 1, 1, 960),
    (960, 960, 3, 7, 1, 1, 960),
    (512, 512, 3, 14, 1, 1, 512),
    (144, 144, 5, 28, 1, 1, 144),
    (40, 40, 7, 45, 1, 1, 40),
)
_TRANSPOSED = (
    (256, 128, 2, 32, 2, 0, 0),
    (256, 128, 4, 16, 2, 1, 0),
    (128, 64, 3, 32, 2, 1, 1),
    (24, 24, 2, 120, 2, 0, 0),
    (24, 1, 2, 160, 2, 0, 0),
    (64, 3, 4, 64, 2, 1, 0),
    (64, 32, 9, 32, 4, 4, 0),
    (40, 40, 2, 56, 2, 0, 0),
    (48, 2, 4, 40, 2, 1, 0),
)

CASES: Mapping[str, Case] = {
    **{
        f"MatMul {_text((*s, n))} {act}".strip(): partial(_matmul, s, n, act)
        for s, n, act in _MATMULS
    },
    **{
        f"Gemm 1x{k}x{n}{' transposed' * t}": partial(_gemm, k, n, t)
        for k, n, t in ((2048, 1000, 1), (4096, 4096, 1), (768, 3072, 0))
    },
    **{
        f"MatMul {_text(a)} by {_text(b)}": partial(_batched, a, b)
        for a, b in (
            ((1, 12, 197, 64), (1, 12, 64, 197)),
            ((1, 12, 197, 197), (1, 12, 197, 64)),
            ((64, 3, 49, 49), (64, 3, 49, 32)),
        )
    },
    **{f"Einsum {e} {_text(a)}": partial(_einsum, e, a, b) for e, a, b in _EINSUMS},
    **{
        f"Attention {_text(sizes)}": partial(_attention, *sizes)
        for sizes in (
            (12, 197, 197, 64),
            (3, 49, 49, 32, 64),
            (8, 100, 1024, 32),
            (4, 1024, 1024, 32),
        )
    },
    **{
        f"Conv {c}to{o} {k}x{k} {n}x{n} stride {s} dilation {d} group {g}": partial(
            _conv, c, o, k, n, s, d, g
        )
        for c, o, k, n, s, d, g in _CONVS
    },
    **{
        f"ConvTranspose {c}to{o} {k}x{k} {n}x{n} stride {s}": partial(
            _transposed, c, o, k, n, s, p, more
        )
        for c, o, k, n, s, p, more in _TRANSPOSED
    },
    **{
        f"Pad and Conv {_text(sizes)}": partial(_padded, *sizes)
        for sizes in ((64, 64, 56, 1, 1), (96, 96, 56, 2, 96))
    },
}
"""Matrix products of few and many rows, attention, dilated, depthwise, transposed convolutions."""
