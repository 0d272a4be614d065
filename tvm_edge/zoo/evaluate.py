"""Evaluate one ONNX node in NumPy, with onnx's reference implementations.

Three operators replace onnx's own: its ``Conv`` gathers patches by index arrays, 3 (dense) to 10
(depthwise) times slower than the views below, and its ``MaxPool`` loops over output elements in
Python, 24 times slower; so does ``AveragePool``.
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


def evaluate(
    op_type: str, inputs: Sequence[NDArray[Any]], outputs: int = 1, **attributes: Any
) -> list[NDArray[Any]]:
    """Return the `outputs` results of an operator, in the type of its `inputs`."""
    assert "auto_pad" not in attributes, "the zoo pads explicitly"
    names = [f"x{i}" for i in range(len(inputs))]
    node = onnx.helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes)
    runner = ReferenceEvaluator(node, opsets={"": OPSET}, new_ops=[AveragePool, Conv, MaxPool])
    return cast(list[NDArray[Any]], runner.run(None, dict(zip(names, inputs, strict=True))))


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
