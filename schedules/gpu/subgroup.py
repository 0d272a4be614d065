"""Convolutions for the sub-groups of Intel's GPUs (ICPP'19 §3.2.1–3.2.2), depthwise ones too.

A hardware thread runs a sub-group, whose work-items share its 4 KiB of registers: they pass values
on without local memory and without barriers, and read or write neighbouring elements in one
message. Output channels, lines and columns of the feature map are divided among work-groups of one
sub-group each. The loops over the window are unrolled.

Lanes are neighbouring columns of the output. In plain NCHW these, and no others, are neighbours in
memory, so that the input is brought by block reads and the results go by block writes. A line of
the input is read once for all taps and output channels: the window moves along it by shuffles.
Weights are the factor that all lanes share; packed by tiles of output channels
(:mod:`~tvm_edge.schedules.gpu.subgroup_filters`) they come by block reads as well, a different one
to each lane, and a shuffle from a constant lane is a mere operand to the hardware. Lanes that are
output channels would have the same results with scattered stores. Convolutions of single pixels
have one line of all pixels, so that no lane idles at the end of short lines; for others the size of
sub-groups is chosen with the width of the image.

A depthwise convolution is one whose tile has one output channel: its lanes share the halo.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import function
from tvm_edge.schedules.gpu.epilogue import as_vectors
from tvm_edge.schedules.gpu.subgroup_tile import fits_sub_group
from tvm_edge.schedules.gpu.subgroup_windows import Windows, Written
from tvm_edge.schedules.gpu.write_subgroup import write_sub_groups

__all__ = ["SubGroup"]


class SubGroup(ScheduleRule):
    """Convolutions with filters packed for sub-groups.

    Parameters
    ----------
    depthwise : bool
        Depthwise convolutions, whose output channels each read one input channel, or all others.
    """

    def __init__(self, *, depthwise: bool) -> None:
        self.name = "subgroup_depthwise" if depthwise else "subgroup"
        self._depthwise = depthwise

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is such a convolution and its epilogue."""
        if not spec.sub_groups:
            return None
        conv = Windows.of(func)
        if conv is None or conv.depthwise != self._depthwise:
            return None
        if not fits_sub_group(conv.sub_group, spec):
            return None
        tensors = [([int(d) for d in b.shape], str(b.dtype)) for b in conv.params]

        def body(*buffers: Any) -> None:
            write_sub_groups(conv, Written(conv, as_vectors(tensors, buffers)))

        return function(tensors[:-1], tensors[-1:], body).func
