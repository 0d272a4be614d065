"""Products with matrices packed in panels: constant ones, and activations in pairs."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import inline_spatial, root_blocks
from tvm_edge.schedules.cpu.conv2d_groups import by_groups
from tvm_edge.schedules.cpu.dot_products import PAIR_PRODUCTS
from tvm_edge.schedules.cpu.float16_runs import multiplies_float16, reduced_in_float16
from tvm_edge.schedules.cpu.loops import lanes_of
from tvm_edge.schedules.cpu.panel_tiles import choose_open_tile, choose_tile, float16_steps
from tvm_edge.schedules.cpu.panels import Product, schedule_open_panels, schedule_panels
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.panels import DENSE_PAIRS, FILLED, PACKED, PADDED
from tvm_edge.schedules.stages import ReductionRule, epilogue_of

__all__ = ["FEW", "DensePairs", "schedule_packed", "steps_in_float16"]

FEW = 4
"""Rows on the left up to which a product is bound by reading the matrix."""

# Axes of a matrix packed in pairs that all of the batch multiplies.
_SHARED = 4


class DensePairs(ReductionRule):
    """Products of :mod:`tvm_edge.schedules.panels` by pairs."""

    name = DENSE_PAIRS

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is such a product."""
        dot = PAIR_PRODUCTS.get(spec.pair_product)
        if dot is None or not sch.get(block).name_hint.startswith(DENSE_PAIRS):
            return None
        inline_spatial(sch, keep=[PADDED, FILLED, PACKED])
        names = {sch.get(each).name_hint: each for each in root_blocks(sch)}
        copies = [names[name] for name in (PACKED, FILLED) if name in names]
        begin, block = schedule_packed(sch, block, spec, copies)
        # After the instructions TVM moves no block.
        by_groups(sch, begin, block, dot.lanes, dot.broadcast())
        if copies:
            sch.tensorize(sch.get_loops(copies[0])[-2], dot.pack())
        return sch


def schedule_packed(
    sch: Schedule, block: SBlockRV, spec: DeviceSpec, copies: Sequence[SBlockRV] = ()
) -> tuple[SBlockRV, SBlockRV]:
    """Schedule a product with a packed matrix, and all around it.

    Returns what begins the accumulators of a tile, and what adds products to them; pairs are left
    without their instructions. `copies` pack the matrix here, the last of them first.
    """
    # Where only the run counts rows, what is not stored of a last panel would be a loop of single
    # elements (197x768x75 and Gelu: 471 instead of 137 µs).
    is_open = any(constant(var.dom.extent) is None for var in sch.get(block).iter_vars)
    epilogue = epilogue_of(sch, block, shorter=not is_open)
    stmt = sch.get(block)
    count = len(stmt.writes[0].source.shape)
    panels = stmt.reads[1].source.shape
    width = constant(panels[-2 if stmt.name_hint.startswith(DENSE_PAIRS) else -1]) or 1
    *outer, columns = (constant(var.dom.extent) for var in stmt.iter_vars[:count])
    row = count - 2
    if not copies and all(outer) and (outer[row] or 0) < FEW:
        row = max(reversed(range(count - 1)), key=lambda axis: outer[axis] or 0)
    others = [axis for axis in range(count - 1) if axis != row]
    product, rows = Product(others, row, count - 1, count), outer[row]
    halves = rows is not None and width % spec.lanes(2) == 0
    steps = steps_in_float16(sch, block, spec) if halves else 0
    lanes = spec.lanes(2) if steps else lanes_of(stmt, spec)
    if rows is None:
        tile = choose_open_tile(columns or 1, spec, lanes, width=width)
        made = schedule_open_panels(sch, block, epilogue, product, tile, lanes, spec)
    else:
        tile = choose_tile(rows, columns or 1, spec, lanes, width=width, float16_steps=steps)
        made = schedule_panels(
            sch,
            block,
            epilogue,
            product,
            tile,
            lanes,
            spec,
            copies=copies,
            shared=len(panels) <= _SHARED,
            in_float16=steps > 0,
        )
    schedule_rest(sch, [block, epilogue, *copies], spec)
    return made


def steps_in_float16(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> int:
    """Return the steps of a product of many rows that is added up in float16, 0 for another."""
    stmt = sch.get(block)
    if not multiplies_float16(sch.mod["main"], spec) or reduced_in_float16(stmt) is None:
        return 0
    return float16_steps(constant(stmt.iter_vars[-1].dom.extent) or 0, spec)
