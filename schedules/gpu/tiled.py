"""Convolutions and matrix products as tiles in local memory: implicit GEMM.

The rule reads the operands off the function, whatever its strides, padding, dilation or groups.
An element of the virtual matrix of windows is the block's own expression at a reduction step and
a column.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis.gemv import get_reduction_expr
from tvm.s_tir.schedule import SBlockRV, Schedule

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import accepts, root_blocks
from tvm_edge.schedules.base import PRECISION, ScheduleRule
from tvm_edge.schedules.contraction import Contraction, match_contraction
from tvm_edge.schedules.float16 import as_stored
from tvm_edge.schedules.gpu.epilogue import Epilogue, Memory, substituted
from tvm_edge.schedules.gpu.product import VECTOR, Product, Tile
from tvm_edge.schedules.gpu.product_tile import choose_product_tile, choose_warp_tile, fits
from tvm_edge.schedules.gpu.write_product import write_parts, write_product
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.open_lengths import Length, length_of, total
from tvm_edge.schedules.stages import (
    epilogue_of,
    epilogue_stores_in_order,
    isolate,
    open_contraction,
)
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.words import WORD, dot, dot_operands, factors_of

__all__ = ["Source", "TensorCore", "Tiled", "digits"]

Found = TypeVar("Found", bound="Source")


class Tiled(ScheduleRule):
    """Contractions on GPUs whose local memory is on the chip.

    Parameters
    ----------
    name : str
    accumulator_dtype : {"float32", "int32"}
        Products are of float32 or float16, or of 8-bit numbers: words of four of them in local
        memory.
    """

    def __init__(self, name: str, accumulator_dtype: str) -> None:
        self.name, self._accumulator_dtype = name, accumulator_dtype

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such contraction and its epilogue."""
        if spec.local_memory_kind != "dedicated":
            return None
        found = Source.adding_up(func, self._accumulator_dtype)
        if found is None:
            return None
        tile = found.tile
        if tile is None or not fits(tile, spec):  # a record may be another device's
            tile = choose_product_tile(found.extents, found.window, spec, found.together)
        return None if tile is None else found.kernel(tile, spec)


class TensorCore(ScheduleRule):
    """Contractions on tensor cores, where float32 may be multiplied as tf32."""

    name = "tensor_core"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` says so and is one contraction and its epilogue."""
        if func.attrs is None or func.attrs.get(PRECISION) != "tf32":
            return None
        found = Source.of(func)
        if found is None or found.stored != "float32":
            return None
        tile = choose_warp_tile(found.extents, spec)
        return None if tile is None else found.kernel(tile, spec)


class Source:
    """Function, analyzed: the axes of its contraction and the expressions at their places.

    Attributes
    ----------
    takes_depthwise : bool
        Of the class: whether convolutions without a reduction over channels are wanted as well.
    extents : (int, int, int, int)
        Batch, rows, columns and reduction length of the product that it typically is.
    lengths : (int or Expr, int or Expr, int or Expr, int)
        Those of a run.
    window : int
        How many of the innermost reduction steps are a window's.
    tile : Tile or None
        The one that the function was given.
    stored : {"float32", "float16", "int32"}
        Type of both operands, as memory or, of 8-bit numbers, local memory has them.
    accumulator_dtype : {"float32", "int32"}
        Type of the accumulators.
    is_words : bool
        Whether operands are words of four 8-bit numbers.
    together : int
        Numbers of an operand.
    """

    takes_depthwise = False

    def __init__(
        self, func: tirx.PrimFunc, block: s_tir.SBlock, epilogue: s_tir.SBlock, conv: Contraction
    ) -> None:
        self._func, self._block, self._epilogue = func, block, epilogue
        self._vars = [v.var for v in block.iter_vars]
        typically = [typical(v.dom.extent) for v in block.iter_vars]
        sizes = [length_of(v.dom.extent) for v in block.iter_vars]
        self._conv = conv
        self._group = conv.group
        self._channels = conv.channels
        self._outer = list(conv.outer)
        self._lines = [p for p in (conv.lines, conv.columns) if p is not None]
        self._reduction = list(conv.reduction)
        self._sizes = sizes
        self.extents = self._as_product(typically)
        self.lengths = self._as_product(sizes)
        self.window = prod(typically[p] for p in conv.window)
        config = block.annotations.get(CONFIG)
        self.tile = read_knobs(Tile, str(config)) if config else None
        operands = factors_of(block)
        assert operands is not None, "a contraction has two factors"
        factors = operands if conv.data_factor == 0 else operands[::-1]
        halves = [as_stored(factor) for factor in factors]
        self.accumulator_dtype = str(block.writes[0].source.dtype)
        self.stored = self.accumulator_dtype if None in halves else "float16"
        self.is_words = dot_operands(get_reduction_expr(block)) is not None
        self.together = WORD if self.is_words else 1
        self._data: tirx.Expr
        self._weight: tirx.Expr
        self._data, self._weight = factors if None in halves else halves
        precision = func.attrs.get(PRECISION) if func.attrs is not None else None
        self._multiplied = self.stored if precision == "float16" else self.accumulator_dtype

    def _as_product(self, sizes: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Return batch, rows, columns and reduction length, given the block's sizes."""
        own = 1 if self._channels is None else sizes[self._channels]
        groups = own // self._group if self._group else 1
        return (
            total([*(sizes[p] for p in self._outer), groups]),
            self._group or own,
            total(sizes[p] for p in self._lines),
            total(sizes[p] for p in self._reduction),
        )

    @classmethod
    def of(cls: type[Found], func: tirx.PrimFunc) -> Found | None:
        """Analyze `func`; return ``None`` if it is something else."""
        return cls.adding_up(func, "float32")

    @classmethod
    def adding_up(cls: type[Found], func: tirx.PrimFunc, accumulator_dtype: str) -> Found | None:
        """Analyze `func` with accumulators of a type; return ``None`` if it is something else."""
        opened = open_contraction(func, accumulator_dtype)
        if opened is None or (opened[2].channels is None and not cls.takes_depthwise):
            return None
        sch, block, conv = opened
        padding = isolate(sch, block, conv.data.source)
        epilogue = epilogue_of(sch, block)
        if match_contraction(sch.get(block), open_axes=True) is None:
            return None
        if padding is not None and not accepts(sch.compute_inline, padding):
            return None
        if len(root_blocks(sch)) != 2:
            return None
        return cls._checked(sch, block, epilogue, conv)

    @classmethod
    def _checked(
        cls: type[Found], sch: Schedule, block: SBlockRV, epilogue: SBlockRV, conv: Contraction
    ) -> Found | None:
        stmt, after = sch.get(block), sch.get(epilogue)
        if not epilogue_stores_in_order(sch.mod["main"], stmt, after):
            return None
        return cls(sch.mod["main"], stmt, after, conv)

    # --------------------------------------------------------------------------------- the kernel

    def kernel(self, tile: Tile, spec: DeviceSpec) -> tirx.PrimFunc:
        """Write the function with loops for `tile`."""
        batch, rows, columns, _ = self.lengths
        room = [total([tile.parts, batch, rows, columns])]
        space = [(room, self.accumulator_dtype)] if tile.parts > 1 else []
        count = len(buffers_of(self._func))

        def body(flat: list[Any]) -> None:
            product = self._product(flat[:count])
            parts = flat[-1] if space else None
            write_product(product, tile, parts)
            if parts is not None:
                write_parts(product, tile, parts, spec)

        return kernel_of(self._func, space, body)

    def _product(self, flat: Sequence[Any]) -> Product:
        assert self._channels is not None
        axes = [tirx.Var(name, "int32") for name in ("batch", "row", "column", "term")]
        batch, row, column, term = axes
        simplify = sym.Analyzer()
        for axis, size in zip(axes, self.lengths, strict=True):
            simplify.bind(axis, ir.Range(0, size))
        group = self.lengths[1]
        groups = self._sizes[self._channels] // group if self._group else 1
        places = {
            **digits(tirx.floordiv(batch, groups), self._outer, self._sizes),
            **digits(column, self._lines, self._sizes),
            **digits(term, self._reduction, self._sizes),
            self._channels: tirx.floormod(batch, groups) * group + row,
        }
        variables = [(v, places[p]) for p, v in enumerate(self._vars)]
        memory = Memory(buffers_of(self._func), flat, simplify)
        weight = memory.flattened(self._weight, variables)
        data = memory.flattened(self._data, variables)
        accumulators = self._block.writes[0].source
        epilogue = Epilogue(self._epilogue, accumulators, memory, axes[:3], self._stored_at(places))
        first = tirx.const(0, "int32")
        _, rows, columns, reduction = self.lengths
        rows_beside = memory.is_straight(weight, row)
        in_vectors = memory.in_vectors(data, column, columns, VECTOR)
        lines = memory.words(data) if self.is_words and in_vectors else None
        along, count = (row, rows) if rows_beside else (term, reduction)

        def at(expr: Any, *where: tirx.Expr) -> Any:
            return substituted(expr, list(zip(axes, where, strict=True)))

        return Product(
            *self.lengths,
            # All columns share the weight of the first one, and so on.
            weight=lambda b, r, t: at(weight, b, r, first, t),
            data=lambda b, t, c: at(data, b, first, c, t),
            store=lambda b, r, c, total: epilogue.write((b, r, c), total),
            store_vector=(
                (lambda b, r, c, total, width: epilogue.write_vector((b, r, c), total, width))
                if epilogue.in_vectors(columns, VECTOR)
                else None
            ),
            weight_width=VECTOR if memory.in_vectors(weight, along, count, VECTOR) else 1,
            data_width=VECTOR if in_vectors else 1,
            rows_beside=rows_beside,
            stored=self.stored,
            multiplied=self._multiplied,
            accumulator_dtype=self.accumulator_dtype,
            multiply=dot if self.is_words else operator.mul,
            data_lines=(
                (lambda b, t, c: [at(line, b, first, c, t) for line in lines]) if lines else None
            ),
        )

    def _stored_at(self, places: Mapping[int, tirx.Expr]) -> list[tirx.Expr]:
        """Return the variables of the storing block, by those of the reducing one."""
        return [places[p] for p in range(len(self._vars)) if p not in self._reduction]


def digits(number: tirx.Expr, axes: Sequence[int], sizes: Sequence[Length]) -> dict[int, tirx.Expr]:
    """Split `number` into places on `axes`, the last one fastest."""
    places: dict[int, tirx.Expr] = {}
    below: Length = 1
    for axis in reversed(axes):
        place = tirx.floordiv(number, below)
        places[axis] = place if axis == axes[0] else tirx.floormod(place, sizes[axis])
        below *= sizes[axis]
    return places
