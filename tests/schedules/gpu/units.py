"""Images in blocks of 16 bytes, and convolutions of them, evaluated independently."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import te

from tests.kernels import built_for_cpu
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS

__all__ = ["convolved", "evaluated", "in_blocks", "out_of_blocks"]


def evaluated(given: list[np.ndarray], make: Callable[..., te.Tensor]) -> np.ndarray:
    """Evaluate a definition on the CPU, as it stands."""
    tensors = [
        te.placeholder(value.shape, str(value.dtype), f"in{i}") for i, value in enumerate(given)
    ]
    result = make(*tensors)
    func = te.create_prim_func([*tensors, result])
    out = tvm.runtime.tensor(np.zeros([int(d) for d in result.shape], str(result.dtype)))
    built_for_cpu(func)(*map(tvm.runtime.tensor, given), out)
    return out.numpy().astype("float64")


def in_blocks(image: np.ndarray) -> np.ndarray:
    """``[N, C, H, W]`` as ``[N, C/b, H, W, b]``, filled up with anything but zeros."""
    block = BLOCKS[str(image.dtype)]
    missing = -image.shape[1] % block
    whole = np.pad(image, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=3)
    split = whole.reshape(whole.shape[0], -1, block, *whole.shape[2:])
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def out_of_blocks(image: np.ndarray, channels: int) -> np.ndarray:
    moved = image.transpose(0, 1, 4, 2, 3)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])[:, :channels]


def convolved(image: np.ndarray, weights: np.ndarray, w: ConvWorkload, zero: int = 0) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    top, left, bottom, right = w.padding
    around = [(0, 0), (0, 0), (top, bottom), (left, right)]
    padded = np.pad(image.astype("float64"), around, constant_values=zero)
    lines, columns = w.output
    result = np.zeros((w.batch, w.filters, lines, columns))
    for y in range(w.kernel[0]):
        for x in range(w.kernel[1]):
            rows = slice(y * w.dilation[0], y * w.dilation[0] + (lines - 1) * w.strides[0] + 1)
            across = slice(x * w.dilation[1], x * w.dilation[1] + (columns - 1) * w.strides[1] + 1)
            seen = padded[:, :, rows, across][:, :, :: w.strides[0], :: w.strides[1]]
            tap = weights[:, :, y, x].astype("float64")
            if w.depthwise:
                result += seen * tap[None, :, 0, None, None]
            else:
                result += np.einsum("nchw,oc->nohw", seen, tap)
    return result
