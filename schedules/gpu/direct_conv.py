"""Analysis of a convolution for kernels without local memory: its axes and its operands."""

from __future__ import annotations

from functools import cached_property
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis.gemv import get_reduction_expr

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import accepts, root_blocks
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.contraction import Contraction, match_contraction
from tvm_edge.schedules.float16 import as_stored, widened
from tvm_edge.schedules.gpu.items import (
    ITEMS,
    ITEMS_PER_CORE,
    LONGEST_WINDOW,
    RESULTS_PER_CORE,
    Items,
    ItemTile,
)
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.gpu.reduce import is_narrow
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.schedules.open_lengths import Length, ceil_div, length_of, total
from tvm_edge.schedules.stages import (
    epilogue_of,
    epilogue_stores_in_order,
    isolate,
    open_contraction,
)
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.words import as_byte, dot, dot_operands, factors_of
from tvm_edge.schedules.workgroup import Problem, Read, Steps, load_steps

__all__ = ["DirectConv"]


class DirectConv:
    """Convolution, analyzed: its axes, and its operands at their places.

    Attributes
    ----------
    is_depthwise : bool
        Whether no two channels share their data.
    is_packed : bool
        Whether filters lie as :mod:`~tvm_edge.schedules.gpu.packed` puts them.
    items : Items or None
        The tile and the work-group that the function was given.
    of_block : int
        Channels in a block of the result, 0 where it is in NCHW.
    own_channels : bool
        Whether each channel reads data of its own, of an item with several.
    sizes, lengths : list
        Of the block's variables: typical ones, and those of a run.
    lines, columns : int or Expr
        Of a run.
    accumulator_dtype : {"float32", "int32"}
        Type of the accumulators.
    multiplied : {"float32", "float16", "int32"}
        Type of the products, and of their partial sums over a window.
    is_words : bool
        Whether operands are words of four 8-bit numbers.
    """

    of_block = 0
    own_channels = False

    def __init__(
        self,
        func: tirx.PrimFunc,
        block: s_tir.SBlock,
        epilogue: s_tir.SBlock,
        padding: s_tir.SBlock | None,
        conv: Contraction,
    ) -> None:
        assert conv.lines is not None
        self.func, self.block, self.epilogue, self.padding = func, block, epilogue, padding
        self.conv = conv
        self.vars = [v.var for v in block.iter_vars]
        self.sizes = [typical(v.dom.extent) for v in block.iter_vars]
        self.lengths = [length_of(v.dom.extent) for v in block.iter_vars]
        self.is_depthwise = conv.channels is None
        # Filters of :mod:`~tvm_edge.schedules.gpu.packed` end with whole vectors of channels.
        last = conv.weight.indices[-1] if conv.weight is not None else None
        self.is_packed = isinstance(last, tirx.FloorMod) and constant(last.b) == VECTOR
        given = block.annotations.get(ITEMS)
        self.items = read_knobs(Items, str(given)) if given else None
        self.lines, self.columns = self.lengths[conv.lines], self.lengths[conv.columns]
        self.channels = 1 if conv.channels is None else self.sizes[conv.channels]
        operands = factors_of(block)
        assert operands is not None, "a contraction has two factors"
        factors = operands if conv.data_factor == 0 else operands[::-1]
        self.accumulator_dtype = str(block.writes[0].source.dtype)
        self.is_words = dot_operands(get_reduction_expr(block)) is not None
        # The type in memory; operands of float16 or int8 are widened to be multiplied.
        find = as_stored if self.accumulator_dtype == "float32" else as_byte
        stored = [find(factor) for factor in factors]
        if padding is not None and as_stored(padding.body.value) is not None:
            stored[0] = factors[0]  # a padded image is stored as it came
        self.data: tirx.Expr
        self.weight: tirx.Expr
        self.data, self.weight = factors if None in stored else stored
        precision = func.attrs.get(PRECISION) if func.attrs is not None else None
        is_stored = self.accumulator_dtype == "float32" and None not in stored
        halves = precision == "float16" and is_stored and _bytes(self.weight) == 2
        self.multiplied = "float16" if halves else self.accumulator_dtype

    @staticmethod
    def of(func: tirx.PrimFunc, accumulator_dtype: str = "float32") -> DirectConv | None:
        """Analyze `func`; return ``None`` if it is something else or accumulates otherwise."""
        opened = open_contraction(func, accumulator_dtype)
        if opened is None or opened[2].lines is None or opened[2].group == 0:
            return None
        sch, block, conv = opened
        stage = isolate(sch, block, conv.data.source)
        epilogue = epilogue_of(sch, block)
        if match_contraction(sch.get(block), open_axes=True) is None:
            return None
        # Padded by a launch of its own where many channels read it: loads then need no condition
        # and can be vectors. A depthwise convolution reads as much as that launch would write.
        padding = None if conv.channels is None else stage
        if stage is not None and padding is None and not accepts(sch.compute_inline, stage):
            return None
        if len(root_blocks(sch)) != 2 + (padding is not None):
            return None
        stmt, after = sch.get(block), sch.get(epilogue)
        if not epilogue_stores_in_order(sch.mod["main"], stmt, after):
            return None
        if prod(constant(stmt.iter_vars[p].dom.extent) or 0 for p in conv.window) > LONGEST_WINDOW:
            return None
        pad = None if padding is None else sch.get(padding)
        return DirectConv(sch.mod["main"], stmt, after, pad, conv)

    def suits(self, spec: DeviceSpec) -> bool:
        """Return whether no other rule does better."""
        if self.is_depthwise:
            return True
        narrow = is_narrow(self.block, spec, RESULTS_PER_CORE)
        return spec.local_memory_kind != "dedicated" and not narrow

    def choose_tile(self, spec: DeviceSpec) -> ItemTile:
        """Choose the largest tile that leaves enough work-items to fill the device."""
        if self.is_depthwise:
            wanted = max(spec.cores, 1) * ITEMS_PER_CORE
            tiles = [
                ItemTile(1, lines, columns)
                for lines, columns in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (2, 4))
                if lines <= self.typical_lines and columns <= self.typical_columns
            ]
            fitting = [tile for tile in tiles if prod(self.space(tile)) >= wanted]
            return fitting[-1] if fitting else tiles[0]
        channels = VECTOR
        while not self.is_packed and self.conv.group % channels:
            channels //= 2
        return ItemTile(channels, 1, min(VECTOR, self.typical_columns))

    @property
    def typical_lines(self) -> int:
        """Lines that an image typically has."""
        assert self.conv.lines is not None
        return self.sizes[self.conv.lines]

    @property
    def typical_columns(self) -> int:
        """Columns that an image typically has."""
        return self.sizes[self.conv.columns]

    @property
    def is_open(self) -> bool:
        """Return whether only the run tells how large images are."""
        return not (isinstance(self.lines, int) and isinstance(self.columns, int))

    def space(self, tile: ItemTile) -> tuple[int, int, int]:
        """Count the work-items along columns, lines, and all else, typically."""
        outer = prod(self.sizes[p] for p in self.conv.outer)
        return (
            -(-self.typical_columns // tile.columns),
            -(-self.typical_lines // tile.lines),
            outer * -(-self.channels // tile.channels),
        )

    def run_space(self, tile: ItemTile) -> tuple[Length, Length, Length]:
        """Count the work-items of a run."""
        outer = total(self.lengths[p] for p in self.conv.outer)
        return (
            ceil_div(self.columns, tile.columns),
            ceil_div(self.lines, tile.lines),
            total([outer, -(-self.channels // tile.channels)]),
        )

    @cached_property
    def _load_steps(self) -> list[Steps]:
        loads = (self.conv.data, self.conv.weight)
        return [load_steps(load, self.vars) for load in loads if load is not None]

    def problem(self, tile: ItemTile) -> Problem:
        """Describe the problem for choosing a work-group: the work-items, and what they read."""
        conv = self.conv
        assert conv.lines is not None
        block_of = {conv.columns: (0, tile.columns), conv.lines: (1, tile.lines)}
        for p in (*conv.outer, *([] if conv.channels is None else [conv.channels])):
            block_of[p] = (2, tile.channels if p == conv.channels else 1)
        reads = [Read.of(steps, self.sizes, block_of) for steps in self._load_steps]
        stride = conv.strides[1]
        return Problem(
            self.space(tile),
            vector=tile.columns * stride,
            reads=tuple(reads),
            element_bytes=_bytes(self.weight),
            registers=2 * tile.channels * tile.lines * tile.columns + 16,
        )

    def product(self, weight: tirx.Expr, data: tirx.Expr) -> tirx.Expr:
        """Multiply two operands, given in their memory type."""
        if self.is_words:
            return dot(weight, data)
        if self.accumulator_dtype == "int32":
            return tirx.Cast("int32", weight) * tirx.Cast("int32", data)
        if self.multiplied == "float16":
            return weight * data
        return widened(weight) * widened(data)


def _bytes(operand: tirx.Expr) -> int:
    return tvm.DataType(str(operand.ty.dtype)).itemsize
