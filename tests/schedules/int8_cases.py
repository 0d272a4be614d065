"""Convolutions of 8-bit numbers with their operands and NumPy's sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import te

from tests.schedules.harness import NEON
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.int8 import (
    BLOCK,
    DOT,
    conv2d_int8,
    depthwise_int8,
    image_block,
    pack_dot_filters,
    pack_window_filters,
)

SDOT = replace(NEON, dot_product="sdot")
SMMLA = replace(NEON, dot_product="smmla")
SMULL = replace(NEON, dot_product="smull")

DENSE = ConvWorkload(2, 40, 6, 13, 96, (3, 3), (1, 1), (1, 0, 2, 1), (1, 1), 1)
FEW = replace(DENSE, filters=7)
POINTWISE = replace(DENSE, kernel=(1, 1), padding=(0, 0, 0, 0))
FIRST = ConvWorkload(1, 3, 11, 14, 24, (5, 5), (2, 2), (2, 1, 2, 2), (1, 1), 1)
GROUPED = ConvWorkload(1, 64, 7, 9, 96, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), 2)
EVEN = replace(GROUPED, width=16, strides=(2, 2))
APART = replace(DENSE, width=17, dilation=(1, 3))
DEPTHWISE = ConvWorkload(1, 40, 9, 13, 40, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 40)
WIDE = ConvWorkload(2, 32, 10, 12, 32, (2, 7), (2, 2), (1, 3, 0, 2), (3, 1), 32)
SQUARE = replace(DEPTHWISE, kernel=(5, 5), padding=(2, 2, 2, 2))
LONG = replace(DEPTHWISE, kernel=(1, 9), padding=(0, 4, 0, 4))
TALL = replace(DEPTHWISE, kernel=(4, 1), padding=(1, 0, 2, 0))
WORKLOADS = {
    "dense": DENSE,
    "few": FEW,
    "pointwise": POINTWISE,
    "flat": replace(POINTWISE, width=10),
    "first": FIRST,
    "grouped": GROUPED,
    "even": EVEN,
    "apart": APART,
    "depthwise": DEPTHWISE,
    "wide": WIDE,
    "square": SQUARE,
    "long": LONG,
    "tall": TALL,
}
ZERO = 3


@dataclass
class Case:
    """A kernel with its operands, and the sums of NumPy."""

    func: tvm.tirx.PrimFunc
    arrays: list[np.ndarray]
    expected: np.ndarray


def case(workload: ConvWorkload, dtype: str = "uint8", config: str = "", group: int = DOT) -> Case:
    random = np.random.default_rng(0)
    w, depth = workload, image_block(workload)
    limits = np.iinfo(dtype)
    shape = (w.batch, filled(w.channels, depth), w.height, w.width)
    image = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    lowest = -128 if group == DOT else -127
    weights = random.integers(lowest, 127, (w.filters, w.channels // w.groups, *w.kernel), "int8")
    blocks = image.reshape(w.batch, -1, depth, w.height, w.width).transpose(0, 1, 3, 4, 2)
    packed = (
        pack_window_filters(weights, w.strides[1], group)
        if w.depthwise
        else pack_dot_filters(weights, depth, w.groups, group)
    )
    x = te.placeholder(blocks.shape, dtype, name="image")
    f = te.placeholder(packed.shape, "int8", name="filters")
    if w.depthwise:
        made = depthwise_int8(x, f, w.strides, w.padding, w.dilation[0], w.kernel[1], ZERO, config)
    else:
        made = conv2d_int8(x, f, w.strides, w.padding, w.dilation, w.groups, ZERO, config)
    result = te.compute(made.shape, lambda *i: made(*i) * 2, name="doubled")
    expected = 2 * convolved(image[:, : w.channels].astype("int64"), weights.astype("int64"), w)
    whole = np.zeros((w.batch, filled(w.filters, BLOCK), *w.output), "int32")
    whole[:, : w.filters] = expected
    lines = whole.reshape(w.batch, -1, BLOCK, *w.output).transpose(0, 1, 3, 4, 2)
    arrays = [np.ascontiguousarray(blocks), packed, np.zeros(lines.shape, "int32")]
    return Case(te.create_prim_func([x, f, result]), arrays, lines)


def convolved(image: np.ndarray, weights: np.ndarray, w: ConvWorkload) -> np.ndarray:
    top, left, bottom, right = w.padding
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=ZERO)
    lines, columns = w.output
    result = np.zeros((w.batch, w.filters, lines, columns), "int64")
    share, own = w.filters // w.groups, w.channels // w.groups
    for group in range(w.groups):
        part = padded[:, group * own : (group + 1) * own]
        filters = weights[group * share : (group + 1) * share]
        for ky in range(w.kernel[0]):
            for kx in range(w.kernel[1]):
                y, x = ky * w.dilation[0], kx * w.dilation[1]
                seen = part[
                    :,
                    :,
                    y : y + (lines - 1) * w.strides[0] + 1 : w.strides[0],
                    x : x + (columns - 1) * w.strides[1] + 1 : w.strides[1],
                ]
                term = np.einsum("nchw,oc->nohw", seen, filters[:, :, ky, kx])
                result[:, group * share : (group + 1) * share] += term
    return result
