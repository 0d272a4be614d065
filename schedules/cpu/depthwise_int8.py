"""Depthwise convolutions of blocked 8-bit images: four pixels of a line at a time.

Four pixels of 16 channels are the 64 bytes of a vector. Transposed (one shuffle) each channel has
its four side by side, and a dot product takes them with four of its filter.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu.conv2d_int8 import by_dot_products
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.cpu.loops import can_peel
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.cpu.window_blocked import schedule_windows
from tvm_edge.schedules.int8 import DEPTHWISE_INT8
from tvm_edge.schedules.stages import ReductionRule

__all__ = ["DepthwiseInt8"]


class DepthwiseInt8(ReductionRule):
    """Convolutions of :func:`tvm_edge.schedules.int8.depthwise_int8`."""

    name = "depthwise_int8"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Schedule the reduction if it is such a convolution."""
        dot = DOT_PRODUCTS.get(spec.dot_product)
        if dot is None or not sch.get(block).name_hint.startswith(DEPTHWISE_INT8):
            return None
        if not can_peel(sch, sch.get_loops(block)[3]):
            return None
        image = sch.get(block).reads[0].source
        windows = schedule_windows(sch, block, image, spec, vectorize=False)
        init = sch.decompose_reduction(block, windows.first)
        schedule_rest(sch, windows.done, spec)
        return by_dot_products(sch, init, block, windows.epilogue, dot, dot.window())
