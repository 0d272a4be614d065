"""Evaluate one ONNX node in NumPy, with onnx's reference implementations.

Some operators replace onnx's own: its ``Conv`` gathers patches by index arrays, 3 (dense) to 10
(depthwise) times slower than the views below, and its ``MaxPool`` loops over output elements in
Python, 24 times slower; so do ``AveragePool`` and ``Resize``. Its ``Gemm`` would want a copy of the
weight in the input's type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

__all__ = ["OPSET", "evaluate"]

OPSET = 17

_GEMM_PIECE = 1 << 24  # elements


def evaluate(
    op_type: str, inputs: Sequence[NDArray[Any] | None], outputs: int = 1, **attributes: Any
) -> list[NDArray[Any]]:
    """Return the `outputs` results of an operator, in the type of its `inputs`.

    None stands for an input left out.
    """
    assert "auto_pad" not in attributes, "the zoo pads explicitly"
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = onnx.helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes)
    ours = [AveragePool, Conv, Gemm, MaxPool, Resize, RoiAlign]
    runner = ReferenceEvaluator(node, opsets={"": OPSET}, new_ops=ours)
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if name}
    return cast(list[NDArray[Any]], runner.run(None, feeds))


def _windows(
    x: NDArray[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> NDArray[Any]:
    """A view ``[N, C, out height, out width, kernel height, kernel width]`` of a padded `x`."""
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    view = sliding_window_view(x, extent, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def _pad(x: NDArray[Any], pads: Sequence[int], value: float) -> NDArray[Any]:
    top, left, bottom, right = pads
    if not any(pads):
        return x
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


class Conv(OpRun):
    """Two-dimensional convolution: patches as columns, one matrix product per picture and group."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[Any],
        w: NDArray[Any],
        b: NDArray[Any] | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[NDArray[Any]]:
        groups = group or 1
        patches = _windows(
            _pad(x, pads or (0, 0, 0, 0), 0), w.shape[2:], strides or (1, 1), dilations or (1, 1)
        )
        n, _, height, width = patches.shape[:4]
        columns = patches.transpose(0, 1, 4, 5, 2, 3).reshape(n, groups, -1, height * width)
        y = w.reshape(groups, w.shape[0] // groups, -1) @ columns
        y = y.reshape(n, w.shape[0], height, width)
        return (y if b is None else y + b[:, None, None],)


class Gemm(OpRun):
    """Fully connected layer; the weight ``[out, in]`` is brought to the input's type in pieces."""

    op_domain = ""

    def _run(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        c: NDArray[Any] | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        transA: int | None = None,
        transB: int | None = None,
    ) -> tuple[NDArray[Any]]:
        assert transB and not transA and (alpha or 1) == (beta or 1) == 1, "as the zoo writes it"
        y = np.empty((len(a), len(b)), a.dtype)
        rows = max(1, _GEMM_PIECE // b.shape[1])
        for start in range(0, len(b), rows):
            piece = b[start : start + rows].astype(a.dtype, copy=False)
            y[:, start : start + rows] = a @ piece.T
        return (y if c is None else y + c,)


class MaxPool(OpRun):
    """Two-dimensional max pooling."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[Any],
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[NDArray[Any]]:
        strides = strides or (1, 1)
        top, left, bottom, right = pads or (0, 0, 0, 0)
        if ceil_mode:
            bottom += -(x.shape[2] + top + bottom - kernel_shape[0]) % strides[0]
            right += -(x.shape[3] + left + right - kernel_shape[1]) % strides[1]
        padded = _pad(x, (top, left, bottom, right), -np.inf)
        return (_windows(padded, kernel_shape, strides, dilations or (1, 1)).max(axis=(4, 5)),)


class AveragePool(OpRun):
    """Two-dimensional average pooling, padding counted or not."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[Any],
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[NDArray[Any]]:
        assert not ceil_mode, "no network averages over an overhanging window"

        def total(values: NDArray[Any]) -> NDArray[Any]:
            padded = _pad(values, pads or (0, 0, 0, 0), 0)
            windows = _windows(padded, kernel_shape, strides or (1, 1), dilations or (1, 1))
            result: NDArray[Any] = windows.sum(axis=(4, 5))
            return result

        if count_include_pad:
            return (total(x) / math.prod(kernel_shape),)
        return (total(x) / total(np.ones((1, 1, *x.shape[2:]), x.dtype)),)


class Resize(OpRun):
    """Height and width to given sizes: linearly, one matrix per axis, or by repeating pixels."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[Any],
        roi: NDArray[Any] | None = None,
        scales: NDArray[Any] | None = None,
        sizes: NDArray[Any] | None = None,
        mode: str | None = None,
        coordinate_transformation_mode: str | None = None,
        nearest_mode: str | None = None,
        **_unused: Any,
    ) -> tuple[NDArray[Any]]:
        assert sizes is not None, "the zoo resizes to sizes"
        if mode == "nearest":
            assert coordinate_transformation_mode == "asymmetric" and nearest_mode == "floor"
            rows, columns = (
                np.arange(new) * old // new for old, new in zip(x.shape[2:], sizes[2:], strict=True)
            )
            return (x[:, :, rows[:, None], columns],)
        assert mode == "linear", f"no network resizes with {mode}"
        height, width = (
            _interpolation(old, int(new), coordinate_transformation_mode or "half_pixel", x.dtype)
            for old, new in zip(x.shape[2:], sizes[2:], strict=True)
        )
        return (height @ x @ width.T,)


def _interpolation(old: int, new: int, mode: str, dtype: Any) -> NDArray[Any]:
    """The matrix ``[new, old]`` that interpolates along an axis."""
    index = np.arange(new)
    if mode == "align_corners":
        position = index * ((old - 1) / max(1, new - 1))
    else:
        assert mode == "half_pixel", f"no network resizes with {mode}"
        position = np.clip((index + 0.5) * (old / new) - 0.5, 0, old - 1)
    low = np.minimum(np.floor(position).astype(int), max(0, old - 2))
    matrix = np.zeros((new, old), dtype)
    matrix[index, low] = 1 - (position - low)
    if old > 1:
        matrix[index, low + 1] = position - low
    return matrix


class RoiAlign(OpRun):
    """Average of bilinear samples: for each region one matrix per axis."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[Any],
        rois: NDArray[Any],
        pictures: NDArray[Any],
        coordinate_transformation_mode: str | None = None,
        mode: str | None = None,
        output_height: int | None = None,
        output_width: int | None = None,
        sampling_ratio: int | None = None,
        spatial_scale: float | None = None,
    ) -> tuple[NDArray[Any]]:
        assert coordinate_transformation_mode == "half_pixel" and mode == "avg" and sampling_ratio
        sizes = (output_height or 1, output_width or 1)
        y = np.empty((len(rois), x.shape[1], *sizes), x.dtype)
        for region, corners, picture in zip(y, rois * spatial_scale - 0.5, pictures, strict=True):
            left, top, right, bottom = corners.tolist()
            rows = _sampling(x.shape[2], sizes[0], top, bottom, sampling_ratio)
            columns = _sampling(x.shape[3], sizes[1], left, right, sampling_ratio)
            region[...] = rows @ x[picture] @ columns.T
        return (y,)


def _sampling(old: int, new: int, start: float, end: float, ratio: int) -> NDArray[np.float64]:
    """The matrix ``[new, old]`` that averages `ratio` samples in each of `new` bins."""
    position = start + (end - start) * (np.arange(new * ratio) + 0.5) / (new * ratio)
    inside = (position >= -1) & (position <= old)
    position = np.clip(position, 0, old - 1)
    low = np.minimum(np.floor(position).astype(int), max(0, old - 2))
    matrix = np.zeros((new * ratio, old))
    index = np.arange(new * ratio)
    matrix[index, low] = inside * (1 - (position - low))
    if old > 1:
        matrix[index, low + 1] = inside * (position - low)
    return matrix.reshape(new, ratio, old).mean(axis=1)
