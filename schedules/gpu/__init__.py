"""Schedules of GPU kernels for OpenCL and CUDA: NCHW and channel blocks, no search.

The first rule of :data:`RULES` that accepts a kernel gives it work-groups within the device's
limits. The last rule accepts anything.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import Scheduled, ScheduleRule, apply_first
from tvm_edge.schedules.elementwise import Elementwise
from tvm_edge.schedules.gpu.conv2d import Conv2d
from tvm_edge.schedules.gpu.dense import Dense
from tvm_edge.schedules.gpu.direct import Direct
from tvm_edge.schedules.gpu.dot_products import has_dot_products, with_dot_products
from tvm_edge.schedules.gpu.fallback import Fallback
from tvm_edge.schedules.gpu.flat import Flat
from tvm_edge.schedules.gpu.item_blocks import ItemBlocks
from tvm_edge.schedules.gpu.launch import schedule_spatial
from tvm_edge.schedules.gpu.reduce import Reduce
from tvm_edge.schedules.gpu.subgroup import SubGroup
from tvm_edge.schedules.gpu.tensor_blocks import TensorBlocks
from tvm_edge.schedules.gpu.tensor_transforms import TensorWinograd
from tvm_edge.schedules.gpu.tiled import TensorCore, Tiled
from tvm_edge.schedules.gpu.tiled_blocks import TiledBlocks
from tvm_edge.schedules.gpu.unit_vectors import UnitVectors
from tvm_edge.schedules.gpu.unit_window import UnitWindow
from tvm_edge.schedules.gpu.window import schedule_window
from tvm_edge.schedules.gpu.winograd import WinogradOutput
from tvm_edge.schedules.gpu.workspace import workspace_outside
from tvm_edge.schedules.open_lengths import narrow_open, with_wide_scalars
from tvm_edge.schedules.windows import Window, match_depthwise, match_pool

__all__ = ["RULES", "schedule"]

RULES: tuple[ScheduleRule, ...] = (
    TensorBlocks(),
    TensorWinograd(),
    UnitWindow(),
    UnitVectors(),
    TiledBlocks(),
    ItemBlocks(),
    WinogradOutput(),
    Flat(),
    Elementwise(schedule_spatial),
    SubGroup(depthwise=False),
    SubGroup(depthwise=True),
    TensorCore(),
    Tiled("tiled", "float32"),
    Tiled("tiled_int8", "int32"),
    Direct("direct", "float32"),
    Direct("direct_int8", "int32"),
    Conv2d(),
    Window("depthwise", partial(match_depthwise, open_axes=True), schedule_window),
    Dense(),
    Window("pool", partial(match_pool, open_axes=True), schedule_window),
    Reduce(),
    Fallback(),
)
"""The rules in the order they are tried."""


def schedule(func: tirx.PrimFunc, spec: DeviceSpec) -> Scheduled:
    """Schedule a kernel for a GPU.

    Parameters
    ----------
    func : PrimFunc
        Blocks as Relax's ``FuseTIR`` leaves them.
    spec : DeviceSpec
        The GPU: its cores and limits decide tiles and work-groups.
    """
    scheduled = apply_first(RULES, narrow_open(func), spec)
    assert scheduled is not None, "the last rule takes any function"
    scheduled = _multiplied(scheduled, spec)
    done = workspace_outside(scheduled.func)
    return replace(scheduled, func=with_wide_scalars(done))


def _multiplied(scheduled: Scheduled, spec: DeviceSpec) -> Scheduled:
    """Use the device's int8 dot-product instruction, and add its name to the rule's."""
    if not has_dot_products(scheduled.func):
        return scheduled
    words = (scheduled.rule.removesuffix("_int8"), spec.dot_product, "int8")
    rule = "_".join(filter(None, words))
    return replace(scheduled, func=with_dot_products(scheduled.func, spec), rule=rule)
