"""Schedules of CPU kernels: blocked and plain layouts, tiles from the device, no search.

Every kernel gets a parallel, vectorised schedule from the first rule of :data:`RULES` that takes
it; the last one takes anything.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import Scheduled, ScheduleRule, apply_first
from tvm_edge.schedules.cpu.attention import Attention
from tvm_edge.schedules.cpu.blocked import Conv2dBlocked
from tvm_edge.schedules.cpu.conv2d import Conv2d
from tvm_edge.schedules.cpu.conv2d_groups import Conv2dGroups
from tvm_edge.schedules.cpu.dense import Dense
from tvm_edge.schedules.cpu.dense_panels import DensePairs
from tvm_edge.schedules.cpu.depthwise_int8 import DepthwiseInt8
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS, PAIR_PRODUCTS
from tvm_edge.schedules.cpu.fallback import Fallback
from tvm_edge.schedules.cpu.float16_partial_sums import accumulate_runs
from tvm_edge.schedules.cpu.loops import schedule_spatial
from tvm_edge.schedules.cpu.overlap import overlap_tiles
from tvm_edge.schedules.cpu.reduce import Reduce
from tvm_edge.schedules.cpu.skip_taps import skip_taps
from tvm_edge.schedules.cpu.window import schedule_window
from tvm_edge.schedules.cpu.window_blocked import WindowBlocked
from tvm_edge.schedules.cpu.winograd import Winograd
from tvm_edge.schedules.elementwise import Elementwise
from tvm_edge.schedules.int8 import CONV2D_INT8
from tvm_edge.schedules.pairs import CONV2D_PAIRS
from tvm_edge.schedules.windows import Window, match_depthwise, match_pool

__all__ = ["RULES", "schedule"]

RULES: tuple[ScheduleRule, ...] = (
    Elementwise(schedule_spatial),
    Attention(),
    Conv2dGroups(CONV2D_INT8, lambda spec: DOT_PRODUCTS.get(spec.dot_product)),
    Conv2dGroups(CONV2D_PAIRS, lambda spec: PAIR_PRODUCTS.get(spec.pair_product)),
    DepthwiseInt8(),
    Conv2dBlocked(),
    Winograd(),
    WindowBlocked(),
    Conv2d(),
    Window("depthwise", match_depthwise, schedule_window),
    DensePairs(),
    Dense(),
    Window("pool", match_pool, schedule_window),
    Reduce(),
    Fallback(),
)
"""The rules in the order they are tried."""


def schedule(func: tirx.PrimFunc, spec: DeviceSpec) -> Scheduled:
    """Schedule a kernel for a CPU.

    Parameters
    ----------
    func : PrimFunc
        Blocks as Relax's ``FuseTIR`` leaves them.
    spec : DeviceSpec
        The CPU: its vector registers and cores decide the tiles.
    """
    scheduled = apply_first(RULES, func, spec)
    assert scheduled is not None, "the last rule takes any function"
    func = accumulate_runs(skip_taps(overlap_tiles(scheduled.func)))
    return replace(scheduled, func=func)
