"""Convolution in NCHW: register tiles of output channels by pixels.

Lanes run along a row of the output, so weights need no packing: each is one scalar, broadcast.
The input is read through a copy that is contiguous for the lanes:

* padding is materialised once, in a parallel loop of its own;
* a stride also sorts the copy's columns by phase, ``[w % s, w // s]``;
* a 1x1 kernel needs no copy, or with a stride one of the pixels it uses. Its rows are fused into
  one axis of pixels;
* an image of a single pixel (squeeze-and-excitation) leaves dot products along the weights.
"""

from __future__ import annotations

from math import prod

from tvm import s_tir
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.contraction import Contraction, match_contraction
from tvm_edge.schedules.cpu.dot import schedule_dot
from tvm_edge.schedules.cpu.microkernel import schedule_contraction
from tvm_edge.schedules.cpu.stages import (
    drop_window,
    gather_pixels,
    schedule_phases,
    schedule_rest,
    split_phases,
)
from tvm_edge.schedules.stages import ReductionRule, epilogue_of, fuse_lines, isolate

__all__ = ["Conv2d"]


class Conv2d(ReductionRule):
    """Dense and grouped convolutions of one to three dimensions, transposed ones too."""

    name = "conv2d"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is a convolution that is not depthwise."""
        conv = match_contraction(sch.get(block))
        if conv is None or (conv.lines is None and not conv.window):
            return None
        if conv.channels is None and _reduction_length(sch.get(block), conv) == 1:
            return None  # depthwise: channels have nothing to share
        stage = isolate(sch, block, conv.data.source)
        epilogue = epilogue_of(sch, block)
        conv = match_contraction(sch.get(block))
        if conv is None:  # a dilated transposed convolution whose flipped weights were inlined
            return None
        done = [block, epilogue]
        if _pixels(sch.get(block), conv) == 1 and schedule_dot(sch, block, epilogue, spec):
            schedule_rest(sch, done, spec)
            return sch
        if stage is None and _is_pointwise(sch.get(block), conv):
            conv = drop_window(sch, block, conv)
            if conv.strides != (1, 1):
                gather_pixels(sch, block, conv)
            conv = fuse_lines(sch, block, epilogue, conv)
        if conv.strides[1] > 1:
            copy = split_phases(sch, block, conv.data.source, conv.strides[1])
            schedule_phases(sch, copy, stage, spec)
            done += [copy] if stage is None else [copy, stage]
        schedule_contraction(sch, block, epilogue, conv, spec)
        schedule_rest(sch, done, spec)
        return sch


def _reduction_length(block: s_tir.SBlock, conv: Contraction) -> int:
    """Input channels summed over."""
    return prod(constant(block.iter_vars[p].dom.extent) or 0 for p in conv.channel_sum)


def _pixels(block: s_tir.SBlock, conv: Contraction) -> int:
    positions = [conv.columns] if conv.lines is None else [conv.columns, conv.lines]
    return prod(constant(block.iter_vars[p].dom.extent) or 0 for p in positions)


def _is_pointwise(block: s_tir.SBlock, conv: Contraction) -> bool:
    """Return whether the kernel is 1x1 without padding, and all pixels can be one axis."""
    sizes = [constant(var.dom.extent) for var in block.iter_vars]
    if conv.lines is None or conv.columns != conv.lines + 1 or _reduction_length(block, conv) == 1:
        return False
    if any(sizes[p] != 1 for p in conv.window):
        return False
    if conv.strides == (1, 1):
        image = [constant(dim) for dim in conv.data.source.shape[-2:]]
        return image == [sizes[conv.lines], sizes[conv.columns]]
    # With a stride the pixels are gathered once, for all channels: not for groups of them.
    return conv.channels is None or conv.group == sizes[conv.channels]
