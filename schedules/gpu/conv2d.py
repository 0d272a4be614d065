"""Convolution in NCHW, padding folded into the loads."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import accepts
from tvm_edge.schedules.contraction import match_contraction
from tvm_edge.schedules.gpu.launch import power_of_two, schedule_rest
from tvm_edge.schedules.gpu.reduce import is_narrow
from tvm_edge.schedules.gpu.tile import Axes, choose_tile, schedule_tile
from tvm_edge.schedules.stages import ReductionRule, epilogue_of, fuse_lines, isolate
from tvm_edge.schedules.typical import typical

__all__ = ["Conv2d"]


# Below this number of results (1x1 and 2x2 images) a work-group shares a reduction. The price is
# that every result reads all of its weights and data by itself.
_RESULTS_PER_CORE = 64


class Conv2d(ReductionRule):
    """Dense and grouped convolutions of one to three dimensions, transposed ones too.

    Convolutions with few results are left to the rule for reductions.
    """

    name = "conv2d"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is a convolution that is not depthwise."""
        conv = match_contraction(sch.get(block), open_axes=True)
        if conv is None or conv.channels is None or (conv.lines is None and not conv.window):
            return None
        if conv.group == 0:
            return None
        if is_narrow(sch.get(block), spec, _RESULTS_PER_CORE):
            return None
        padding = isolate(sch, block, conv.data.source)
        epilogue = epilogue_of(sch, block)
        conv = match_contraction(sch.get(block), open_axes=True)
        if conv is None:  # a dilated transposed convolution whose flipped weights were inlined
            return None
        is_open = _is_open(sch, block, conv.columns)
        if conv.lines is not None and conv.columns == conv.lines + 1 and not is_open:
            conv = fuse_lines(sch, block, epilogue, conv)
        if padding is not None:
            # A condition on each load costs less than to write and read the padded copy.
            accepts(sch.compute_inline, padding)
        loops = sch.get_loops(block)
        sizes = [typical(var.dom.extent) for var in sch.get(block).iter_vars]
        assert conv.channels is not None
        # After fusing, lines that could not be fused are like a batch.
        outer = [p for p in range(len(sizes)) if p not in (conv.channels, conv.columns)]
        outer = [p for p in outer if p not in conv.reduction]
        reduction = [*conv.channel_sum, *conv.window]
        tile = choose_tile(
            spec,
            outer=prod(sizes[p] for p in outer),
            channels=sizes[conv.channels],
            columns=power_of_two(sizes[conv.columns]) if is_open else sizes[conv.columns],
            most_channels=conv.group,
        )
        schedule_tile(
            sch,
            block,
            epilogue,
            Axes(
                [loops[p] for p in outer],
                loops[conv.channels],
                loops[conv.columns],
                [loops[p] for p in reduction],
                [loops[p] for p in conv.window],
            ),
            tile,
        )
        schedule_rest(sch, [block, epilogue], spec)
        return sch


def _is_open(sch: Schedule, block: SBlockRV, position: int) -> bool:
    return constant(sch.get(block).iter_vars[position].dom.extent) is None
