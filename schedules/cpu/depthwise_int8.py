"""Depthwise convolutions of blocked 8-bit images: four pixels of a line at a time.

Four pixels of 16 channels are 64 bytes: one vector of AVX-512, four of NEON. Transposed (one
shuffle, or eight) each channel has its four side by side, and a dot product takes them with four of
its filter. Neighbouring results share them where the filter leaves columns over. NEON's ``smlal``
takes four instructions for each tap of 16 channels, this 2.5 of 3 × 3 and 5 × 5 taps (3.5 where a
stride lets no results share).
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.cpu.bias_first import begin_with_bias
from tvm_edge.schedules.cpu.conv2d_groups import by_groups
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.cpu.loops import can_peel
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.cpu.window_blocked import schedule_windows
from tvm_edge.schedules.int8 import DEPTHWISE_INT8, window_step
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
        image, filters = (region.source for region in sch.get(block).reads)
        steps = constant(sch.get(block).iter_vars[6].dom.extent) or 1
        group = constant(filters.shape[4]) or 1
        shifts = (constant(filters.shape[2]) or steps) * group // window_step(group) // steps
        windows = schedule_windows(sch, block, image, spec, vectorize=False, shifts=shifts)
        init = sch.decompose_reduction(block, windows.first)
        schedule_rest(sch, windows.done, spec)
        names = sch.get(init).name_hint, sch.get(windows.epilogue).name_hint
        by_groups(sch, init, block, dot.window_lanes, dot.window(group))
        return begin_with_bias(sch.mod["main"], *names)
