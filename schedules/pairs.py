"""Convolutions and products of bfloat16 by pairs of neighbouring channels, added up in float32.

x86's ``vdpbf16ps`` and Arm's ``bfdot`` multiply the two numbers of a pair with two of each lane
(:mod:`tvm_edge.schedules.channel_groups`). On Zen 4 that does twice the multiply-adds of float32.
"""

from __future__ import annotations

import numpy as np

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import filled, input_block
from tvm_edge.schedules.channel_groups import pack_groups
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["CONV2D_PAIRS", "PAIR", "multiplies_pairs", "pack_pairs", "pair_block"]

CONV2D_PAIRS = "conv2d_pairs"
"""Name of the block that sums in a dense or grouped convolution."""

PAIR = 2
"""Products that are added to a lane at once."""


def multiplies_pairs(workload: ConvWorkload, spec: DeviceSpec) -> bool:
    """Return whether a convolution is of bfloat16, and `spec` multiplies its pairs."""
    return bool(spec.pair_product) and workload.dtype == "bfloat16" and not workload.depthwise


def pair_block(workload: ConvWorkload, block: int) -> int:
    """Channels in a block of the image that such a convolution reads; 0 if it has no kernel.

    An image of few channels has them in one small block, filled up to whole pairs.
    """
    depth = input_block(workload, block)
    return filled(workload.channels, PAIR) if depth == 1 else depth


def pack_pairs(weights: np.ndarray, depth: int, block: int, groups: int) -> np.ndarray:
    """Filters ``[O, C/groups, KH, KW]`` as ``[O/l, C/b, KH, KW, b/2, l, 2]``; `depth` is `b`."""
    return pack_groups(weights, depth, PAIR, block, groups)
