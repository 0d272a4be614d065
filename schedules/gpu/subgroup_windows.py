"""Analysis of a convolution with packed filters, by lines, columns and taps of its window."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV, Schedule

from tvm_edge.schedules.accesses import IF_THEN_ELSE, constant, nodes_in, uses
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.gpu.epilogue import Epilogue, Memory
from tvm_edge.schedules.gpu.subgroup_filters import SUB_GROUP
from tvm_edge.schedules.gpu.subgroup_tile import SubGroupTile
from tvm_edge.schedules.gpu.tiled import Source, digits
from tvm_edge.schedules.knobs import read_knobs

__all__ = ["Window", "Windows", "Written"]

Found = TypeVar("Found", bound="Windows")


@dataclass(frozen=True)
class Window:
    """One axis of a convolution.

    Attributes
    ----------
    outputs, taps : int
        Extents.
    stride, dilation : int
        Elements of the input from an output to the next, and from a tap to the next.
    """

    outputs: int
    taps: int
    stride: int
    dilation: int

    @property
    def reach(self) -> int:
        """Index of the last element that is read, padding included."""
        return (self.outputs - 1) * self.stride + (self.taps - 1) * self.dilation


class Windows(Source):
    """Function whose contraction is a convolution with filters packed for sub-groups.

    Attributes
    ----------
    sub_group : SubGroupTile
        Tile that the filters are packed for.
    lines, columns : Window
    params : list of buffer
        Of the function.
    channels : int
        Input channels of a reduction.
    depthwise : bool
        Whether output channels each read one input channel of their own.
    flat : bool
        Whether outputs depend on a pixel each, so that all lines are one.
    """

    takes_depthwise = True

    def __init__(
        self, func: tirx.PrimFunc, block: s_tir.SBlock, epilogue: s_tir.SBlock, conv: Contraction
    ) -> None:
        super().__init__(func, block, epilogue, conv)
        self.sub_group = read_knobs(SubGroupTile, str(block.annotations[SUB_GROUP]))
        self._taps = [_tap(conv, self._vars, axis) for axis in (-2, -1)]
        self.lines, self.columns = (
            self._window(axis, place, conv.strides[axis])
            for axis, place in enumerate((conv.lines, conv.columns))
        )
        self.params = list(func.params)
        self.channels = prod(self._sizes[p] for p in conv.channel_sum)
        self.depthwise = conv.channels is None
        single = self.lines.taps == self.columns.taps == 1
        padded = not isinstance(self._data, ir.TensorLoad)
        self.flat = single and conv.strides == (1, 1) and not padded

    @classmethod
    def of(cls: type[Found], func: tirx.PrimFunc) -> Found | None:
        """Analyze `func`; return ``None`` if its filters are not packed for sub-groups."""
        return super().of(func) if _is_packed(func) else None

    @classmethod
    def _checked(
        cls: type[Found], sch: Schedule, block: SBlockRV, epilogue: SBlockRV, conv: Contraction
    ) -> Found | None:
        found = super()._checked(sch, block, epilogue, conv)
        # The filters are read in the order in which they are packed, not element by element.
        if found is None or not all(isinstance(length, int) for length in found.lengths):
            return None
        if not isinstance(weight := found._weight, ir.TensorLoad):
            return None
        return found if any(weight.source.same_as(param) for param in found.params) else None

    @property
    def weights(self) -> tirx.Buffer:
        """The packed filters, a parameter."""
        return self._weight.source

    def operands(
        self, memory: Memory, batch: tirx.Var, channel: tirx.Var, y: Any, x: Any, taps: Any
    ) -> tirx.Expr:
        """Return the input value that a tap of the window reads for an output."""
        # All output channels of a convolution group read the data of the first one.
        places = self._places(batch, tirx.const(0, "int32"), y, x)
        places |= digits(channel, self._conv.channel_sum, self._sizes)
        for (position, _), tap in zip(self._taps, taps, strict=True):
            if position is not None:
                places[position] = tirx.const(tap, "int32") if isinstance(tap, int) else tap
        return memory.flattened(self._data, [(v, places[p]) for p, v in enumerate(self._vars)])

    def epilogue(self, memory: Memory) -> Epilogue:
        """Build the epilogue, by batch, row, line and column of the accumulators."""
        axes = [tirx.Var(name, "int32") for name in ("batch", "row", "line", "column")]
        places = self._places(*axes)
        spatial = [places[p] for p in range(len(self._vars)) if p not in self._reduction]
        return Epilogue(self._epilogue, self._block.writes[0].source, memory, axes, spatial)

    def _places(self, batch: Any, row: Any, y: Any, x: Any) -> dict[int, Any]:
        if self.flat:
            places = digits(x, self._lines, self._sizes)
        else:
            places = dict(zip(self._lines, (y, x)[-len(self._lines) :], strict=True))
        if self._channels is None:
            return places | digits(batch, self._outer, self._sizes)
        groups = self._sizes[self._channels] // self._group
        places[self._channels] = tirx.floormod(batch, groups) * self._group + row
        return places | digits(tirx.floordiv(batch, groups), self._outer, self._sizes)

    def _window(self, axis: int, place: int | None, stride: int) -> Window:
        tap, dilation = self._taps[axis]
        outputs = 1 if place is None else self._sizes[place]
        return Window(outputs, 1 if tap is None else self._sizes[tap], stride, dilation)


class Written:
    """Operands of a convolution as expressions of a tile's indices and of places in it.

    Attributes
    ----------
    batch, block, line, column, channel, lane : Var
        Of the sub-group: the image and channel group, and the tile of output channels, lines and
        columns. Of a reduction: the input channel. Of a work-item: its lane.
    counts : tuple of int
        Extents of the first four.
    size : int
        Lanes.
    weights : buffer
        Packed.
    simplify : sym.Analyzer
        Has their ranges.
    """

    def __init__(self, conv: Windows, flat: Sequence[Any]) -> None:
        self._conv, tile = conv, conv.sub_group
        self.size = tile.size
        packed = conv.weights
        self.weights = next(
            vector for param, vector in zip(conv.params, flat, strict=True) if param.same_as(packed)
        )
        self._packed = [int(dim) for dim in packed.shape]
        if conv.flat:
            tiles = (1, -(-conv.extents[2] // (tile.size * tile.lines)))
        else:
            lines, columns = conv.lines.outputs, conv.columns.outputs
            tiles = (-(-lines // tile.lines), -(-columns // tile.size))
        self.counts = (conv.extents[0], self._packed[1], *tiles)
        names = ("batch", "block", "line", "column", "channel", "lane")
        axes = [tirx.Var(name, "int32") for name in names]
        self.batch, self.block, self.line, self.column, self.channel, self.lane = axes
        self.simplify = sym.Analyzer()
        for axis, extent in zip(axes, (*self.counts, conv.channels, tile.size), strict=True):
            self.simplify.bind(axis, ir.Range(0, extent))
        self._memory = Memory(conv.params, flat, self.simplify)
        self._epilogue = conv.epilogue(self._memory)

    def weight(self, tap: tirx.Expr | int) -> tirx.Expr:
        """Return the offset at which the packed weights of one line of the window begin."""
        groups, blocks, channels, height, pitch = self._packed
        group = tirx.floormod(self.batch, groups)
        at = ((group * blocks + self.block) * channels + self.channel) * height + tap
        return self.simplify.simplify(at * pitch)

    def place(self, line: int, beyond: int = 0) -> tuple[tirx.Expr, tirx.Expr]:
        """Return line and column of the output of a lane, `beyond` columns further on."""
        tile = self._conv.sub_group
        if self._conv.flat:
            first = (self.column * tile.lines + line) * tile.size
            return tirx.const(0, "int32"), first + self.lane
        return self.line * tile.lines + line, self.column * tile.size + self.lane + beyond

    def data(
        self, line: int, taps: tuple[tirx.Expr | int, int], beyond: int
    ) -> tuple[tirx.Expr, list[tirx.Expr]]:
        """Return the value that a tap reads, and the conditions under which it is not zero."""
        y, x = self.place(line, beyond)
        conv = self._conv
        value = conv.operands(self._memory, self.batch, self.channel, y, x, taps)
        limits = []
        if conv.flat:
            limits.append(x < conv.extents[2])
        else:
            for at, axis, tap in zip((y, x), (conv.lines, conv.columns), taps, strict=True):
                limits.append(at * axis.stride + tap * axis.dilation <= axis.reach)
        value = self.simplify.simplify(value)
        if isinstance(value, ir.Call) and value.op.same_as(IF_THEN_ELSE):
            condition, inside, otherwise = value.args
            if isinstance(otherwise, tirx.FloatImm) and float(otherwise) == 0:
                return inside, self.needed([*limits, condition])
        return value, self.needed(limits)

    def result(
        self, line: int, row: int, total: tirx.Expr
    ) -> tuple[Any, tirx.Expr, tirx.Expr, list[tirx.Expr], list[tirx.Expr]]:
        """Return target, offset, value and conditions of the store of a result.

        All lanes share the conditions of the last but one list, and each has its own in the last.
        """
        conv = self._conv
        y, x = self.place(line)
        channel = self.block * conv.sub_group.channels + row
        target, offset, value = self._epilogue.stored((self.batch, channel, y, x), total)
        alike = self.needed([channel < conv.extents[1]])
        if conv.flat:
            own = self.needed([x < conv.extents[2]])
        else:
            alike += self.needed([y < conv.lines.outputs])
            own = self.needed([x < conv.columns.outputs])
        return target, self.simplify.simplify(offset), self.simplify.simplify(value), alike, own

    def needed(self, conditions: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        """Drop the conditions that are known to hold or that follow from the others."""
        open_ones = [part for condition in conditions for part in _parts(condition)]
        kept: list[tirx.Expr] = []
        while open_ones:
            condition = open_ones.pop()
            with ExitStack() as assumed:
                for other in (*open_ones, *kept):
                    assumed.enter_context(self.simplify.constraint_scope(other))
                simple = self.simplify.simplify(condition)
            if not (isinstance(simple, tirx.IntImm) and int(simple)):
                kept.append(self.simplify.simplify(condition))
        return kept[::-1]


def _is_packed(func: tirx.PrimFunc) -> bool:
    return any(SUB_GROUP in block.annotations for block in nodes_in(func.body, s_tir.SBlock))


def _parts(condition: tirx.Expr) -> list[tirx.Expr]:
    if isinstance(condition, tirx.And):
        return [*_parts(condition.a), *_parts(condition.b)]
    return [condition]


def _tap(conv: Contraction, variables: Sequence[tirx.Var], axis: int) -> tuple[int | None, int]:
    """Return the variable of the window along an axis of the input, and its dilation."""
    index = conv.data.indices[axis]
    for p in conv.window:
        if uses(index, variables[p]):
            return p, constant(sym.detect_linear_equation(index, [variables[p]])[0]) or 1
    return None, 1
