"""Greedy non-maximum suppression (ICPP'19 §3.1.1): lists of boxes in blocks of their order.

Boxes that take part are compacted and sorted by score. Three launches follow for each block. A grid
finds the overlapping boxes of a block, as words of 32 bits. One work-group for each list sweeps the
words, and writes the boxes that it keeps. A grid drops all later boxes that overlap with the kept
ones. So work is serial only within a block, and only its words need workspace. Work-items are
boxes, work-groups are blocks of boxes, and lists come last, as in the paper. Nothing is written for
boxes that are suppressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import (
    Tensor,
    barrier,
    hold,
    launch,
    register,
    registers,
    when,
)
from tvm_edge.schedules.gpu.launch import power_of_two
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, NOWHERE, Box, Candidates, Overlap
from tvm_edge.schedules.vision.compaction import Compaction
from tvm_edge.schedules.vision.gpu.merge import choose_tile
from tvm_edge.schedules.vision.gpu.sort import sort_words
from tvm_edge.schedules.vision.keys import WORD, pack

__all__ = ["Suppression"]

_BITS = 32
# Boxes of a block: one work-group sweeps many at once; few need more launches.
_LONGEST_BLOCK, _SHORTEST_BLOCK = 2048, 128
# Bytes for the words of a block, and for all workspace: lists that do not fit run in later passes.
_WORD_BYTES, _WORKSPACE_BYTES = 16 << 20, 64 << 20
# Kept boxes that a work-group compares with its own, and boxes of a work-group.
_STAGED, _ITEMS = 256, 128
# Comparisons before a work-item looks at their outcome.
_ABREAST = 4


class Suppression:
    """Kernels that choose from each of some lists.

    Parameters
    ----------
    lists, length : int
        At least 1.
    most : int
        Boxes to keep of a list, at least 1.
    overlap : Overlap
    spec : DeviceSpec
    grouped : bool
        Whether candidates have groups.
    considered : int, optional
        How many of a list's candidates may be kept or suppress others, the first ones.
    """

    def __init__(
        self,
        lists: int,
        length: int,
        most: int,
        overlap: Overlap,
        spec: DeviceSpec,
        *,
        grouped: bool = False,
        considered: int | None = None,
    ) -> None:
        self.lists, self.length, self.most = lists, length, most
        self.considered = length if considered is None else min(considered, length)
        self.overlap, self.grouped = overlap, grouped
        most_items = power_of_two(spec.max_work_group_size)
        self.items = min(_ITEMS, most_items)
        # A work-item for each word of a block.
        block = min(_LONGEST_BLOCK, -(-length // _BITS) * _BITS, most_items * _BITS)
        while block > _SHORTEST_BLOCK and lists * block * block // 8 > _WORD_BYTES:
            block = -(-block // (2 * _BITS)) * _BITS
        self.block, self.words = block, block // _BITS
        self.blocks = -(-self.considered // block)
        each_list = length * (8 + 8 + 4 + 4) + block * self.words * 4
        self.at_once = max(1, min(lists, _WORKSPACE_BYTES // each_list))
        self.tile = choose_tile(spec, length, self.at_once)
        self.compaction = Compaction(self.at_once, length, spec)

    @property
    def workspace(self) -> list[Tensor]:
        """Words of candidates, twice; their order; dropped boxes; words of a block; counts."""
        size = self.at_once * self.length
        return [
            ([size], WORD),
            ([size], WORD),
            ([size], "int32"),
            ([size], "int32"),
            ([self.at_once * self.block * self.words], "uint32"),
            ([self.at_once], "int32"),
            ([self.at_once], "int32"),
            *self.compaction.workspace,
        ]

    def write(self, candidates: Candidates, kept: Any, counts: Any, space: Any) -> None:
        """Write the kernels.

        Parameters
        ----------
        candidates : Candidates
        kept : buffer
            ``[lists * most]`` int32: gets positions in the order of their keys; those after a
            list's count stay undefined.
        counts : buffer
            ``[lists]`` int32: number of kept boxes.
        space : sequence of buffers
            The workspace.
        """
        for first in range(0, self.lists, self.at_once):
            # The last pass has as many lists as all others: some are done twice.
            start = min(first, self.lists - self.at_once)
            _Pass(self, start, candidates, kept, counts, space).write()


class _Pass:
    """Pass over as many lists as there is workspace for."""

    def __init__(
        self,
        plan: Suppression,
        first: int,
        candidates: Candidates,
        kept: Any,
        counts: Any,
        space: Any,
    ) -> None:
        self._plan, self._first, self._candidates = plan, first, candidates
        self._kept, self._counts = kept, counts
        *self._sorting, self._order, self._dropped, self._words = space[:5]
        # Of each list: boxes that take part, and boxes that were kept before the current block.
        self._totals, self._before, *self._scanning = space[5:]

    def write(self) -> None:
        self._sort()
        for block in range(self._plan.blocks):
            self._find_words(block)
            self._sweep(block)
            if block + 1 < self._plan.blocks:
                self._drop(block)

    def _total(self, line: Any) -> tirx.Expr:
        """Count the boxes of a list that take part."""
        considered = self._plan.considered
        if self._candidates.takes_part is None:
            return tirx.IntImm("int32", considered)
        return tirx.min(self._totals[line], considered)

    def _full(self, line: Any) -> tirx.Expr:
        """Return whether as many boxes of a list are kept as are wanted."""
        return self._counts[self._first + line] >= self._plan.most

    def _sort(self) -> None:
        """Sort the boxes that take part; nothing is dropped yet, nothing kept."""
        plan, candidates, first = self._plan, self._candidates, self._first
        length, front, back = plan.length, *self._sorting

        def packed(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return pack(candidates.key(first + line, at), at)

        def emit(line: tirx.Expr, rank: tirx.Expr, position: tirx.Expr) -> None:
            self._order[line * length + rank] = position
            self._dropped[line * length + rank] = 0
            with when(rank == 0):
                self._counts[first + line] = 0

        takes_part = candidates.takes_part
        if takes_part is None:
            sort_words(plan.tile, plan.at_once, length, packed, emit, (front, back))
            return

        def wanted(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return takes_part(first + line, at)

        def keep(line: tirx.Expr, at: tirx.Expr, place: tirx.Expr) -> None:
            back[line * length + place] = packed(line, at)

        def count(line: tirx.Expr, total: tirx.Expr) -> None:
            self._totals[line] = total
            self._counts[first + line] = 0

        def compacted(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return back[line * length + at]

        plan.compaction.write(wanted, keep, None, count, self._scanning)
        sort_words(
            plan.tile,
            plan.at_once,
            length,
            compacted,
            emit,
            (front, back),
            self._totals.__getitem__,
        )

    def _box(self, line: tirx.Expr, position: tirx.Expr) -> tuple[Box, tirx.Expr | None]:
        group = self._candidates.group
        line = self._first + line
        which = None if group is None else hold(group(line, position))
        return self._candidates.box(line, position), which

    def _find_words(self, block: int) -> None:
        """Find, for each box of a block, the bits of the later boxes that it overlaps."""
        plan = self._plan
        length, words, start = plan.length, plan.words, block * plan.block
        chunks = -(-plan.block // plan.items)
        with launch(plan.at_once * words * chunks, plan.items) as (index, item):
            line = hold(tirx.floordiv(index, words * chunks))
            word = hold(tirx.floordiv(tirx.floormod(index, words * chunks), chunks))
            chunk = hold(tirx.floormod(index, chunks))
            total = hold(self._total(line))
            column = hold(start + word * _BITS)
            behind = word * _BITS + _BITS > chunk * plan.items  # some columns are after some rows
            # Barriers stand outside of conditions: drivers handle them worst there.
            active = hold(
                tirx.all(column < total, behind, tirx.Not(self._full(line))).astype("int32")
            )
            columns = _Staged(_BITS, plan.grouped)

            def column_box(slot: tirx.Expr) -> tuple[Box, tirx.Expr | None]:
                return self._box(line, hold(self._order[line * length + column + slot]))

            with when(active != 0):
                columns.fill(item, plan.items, total - column, column_box)
            barrier()
            row = hold(chunk * plan.items + item)
            rank = hold(start + row)
            with when(tirx.all(active != 0, row < plan.block, rank < total)):
                with when(self._dropped[line * length + rank] == 0):
                    own = self._box(line, hold(self._order[line * length + rank]))
                    found = register(tirx.const(0, "uint32"))
                    with T.serial(0, _BITS) as bit:
                        over = columns.overlaps(bit, own, plan.overlap)
                        hit = tirx.all(word * _BITS + bit > row, over).astype("uint32")
                        found[0] = found[0] | (hit << bit.astype("uint32"))
                    self._words[(line * plan.block + row) * words + word] = found[0]

    def _sweep(self, block: int) -> None:
        """Keep each box of a block that no kept one overlaps; a work-group for each list.

        It sweeps 32 boxes at a time. All work-items find out which of them stay, by their words
        for each other. Then each work-item drops, of 32 others, those that the kept ones overlap.
        """
        plan = self._plan
        length, words, most, start = plan.length, plan.words, plan.most, block * plan.block
        items = power_of_two(2 * words - 1)
        with launch(plan.at_once, items) as (line, item):
            total = hold(self._total(line))
            count = register(self._counts[self._first + line])
            with when(item == 0):
                self._before[line] = count[0]
            gone = T.buffer_proxy(T.decl_buffer([words], "uint32", scope="shared"))
            among = T.buffer_proxy(T.decl_buffer([plan.block], "uint32", scope="shared"))
            busy = T.buffer_proxy(T.decl_buffer([words], "uint32", scope="shared"))
            with when(item < words):
                bits = register(tirx.const(0, "uint32"))
                with T.serial(0, _BITS) as bit:
                    rank = hold(start + item * _BITS + bit)
                    dropped = tirx.if_then_else(
                        rank < total, self._dropped[line * length + rank], 1
                    )
                    bits[0] = bits[0] | (dropped.astype("uint32") << bit.astype("uint32"))
                gone[item] = bits[0]
            with T.serial(0, -(-plan.block // items)) as step:
                row = hold(step * items + item)
                with when(row < plan.block):
                    at = (line * plan.block + row) * words + tirx.floordiv(row, _BITS)
                    among[row] = tirx.if_then_else(
                        start + row < total, self._words[at], tirx.const(0, "uint32")
                    )
            barrier()
            with when(item < words):
                bits = register(_zero())
                with T.serial(0, _BITS) as bit:
                    drops = (among[item * _BITS + bit] != _zero()).astype("uint32")
                    bits[0] = bits[0] | (drops << bit.astype("uint32"))
                busy[item] = bits[0]
            # Loaded a step ahead: only later is it known which of them count.
            rows = registers(_BITS, "uint32")

            def load(step: tirx.Expr) -> None:
                with T.unroll(0, _BITS) as bit:
                    at = (line * plan.block + step * _BITS + bit) * words + item
                    rows[bit] = tirx.if_then_else(
                        tirx.all(item > step, item < words),
                        self._words[at],
                        tirx.const(0, "uint32"),
                    )

            load(tirx.IntImm("int32", 0))
            barrier()
            # None where the list is through, or all wanted boxes of it are kept.
            some = tirx.max(tirx.min(total - start, plan.block), 0)
            steps = hold(tirx.Select(count[0] < most, tirx.floordiv(some + (_BITS - 1), _BITS), 0))
            with T.serial(0, steps) as step:
                stay = register(~gone[step])
                # The order only matters for those that drop others among the 32.
                first = register(stay[0] & busy[step])
                barrier()
                with T.While(first[0] != _zero()):
                    lowest = hold(first[0] & (_zero() - first[0]))
                    bit = tirx.popcount(lowest - _one()).astype("int32")
                    stay[0] = stay[0] & ~among[step * _BITS + bit]
                    first[0] = (first[0] ^ lowest) & stay[0]
                stays = hold(stay[0])
                with T.serial(0, -(-_BITS // items)) as part:
                    bit = hold(part * items + item)
                    own = bit.astype("uint32")
                    with when(tirx.all(bit < _BITS, ((stays >> own) & _one()) != _zero())):
                        fewer = stays & ((_one() << own) - _one())
                        at = hold(count[0] + tirx.popcount(fewer).astype("int32"))
                        with when(at < most):
                            rank = start + step * _BITS + bit
                            found = self._order[line * length + rank]
                            self._kept[(self._first + line) * most + at] = found
                with when(tirx.all(item > step, item < words)):
                    bits = register(gone[item])
                    with T.unroll(0, _BITS) as bit:
                        bits[0] = bits[0] | (rows[bit] & _spread_bit(stays, bit))
                    gone[item] = bits[0]
                with when(step + 1 < words):
                    load(step + 1)
                count[0] = count[0] + tirx.popcount(stays).astype("int32")
                barrier()
            with when(item == 0):
                self._counts[self._first + line] = tirx.min(count[0], most)

    def _drop(self, block: int) -> None:
        """Drop all boxes after a block that overlap one that was kept of it."""
        plan = self._plan
        length, most, start = plan.length, plan.most, (block + 1) * plan.block
        chunks = -(-(plan.considered - start) // plan.items)
        parts = -(-min(plan.block, most) // _STAGED)
        with launch(plan.at_once * chunks * parts, plan.items) as (index, item):
            line = hold(tirx.floordiv(index, chunks * parts))
            chunk = hold(tirx.floordiv(tirx.floormod(index, chunks * parts), parts))
            total = hold(self._total(line))
            first = hold(self._before[line] + tirx.floormod(index, parts) * _STAGED)
            last = hold(tirx.min(self._counts[self._first + line], first + _STAGED))
            some = tirx.all(first < last, start + chunk * plan.items < total)
            active = hold(tirx.all(some, tirx.Not(self._full(line))).astype("int32"))
            staged = _Staged(_STAGED, plan.grouped)

            def kept_box(slot: tirx.Expr) -> tuple[Box, tirx.Expr | None]:
                at = (self._first + line) * most + first + slot
                return self._box(line, hold(self._kept[at]))

            with when(active != 0):
                staged.fill(item, plan.items, last - first, kept_box)
            barrier()
            rank = hold(start + chunk * plan.items + item)
            with (
                when(tirx.all(active != 0, rank < total)),
                when(self._dropped[line * length + rank] == 0),
            ):
                own = self._box(line, hold(self._order[line * length + rank]))
                hits, slot = (register(tirx.IntImm("int32", 0)) for _ in range(2))
                with T.While(tirx.all(hits[0] == 0, slot[0] < last - first)):
                    with T.unroll(0, _ABREAST) as ahead:
                        over = staged.overlaps(slot[0] + ahead, own, plan.overlap)
                        hits[0] = hits[0] | over.astype("int32")
                    slot[0] = slot[0] + _ABREAST
                with when(hits[0] != 0):
                    self._dropped[line * length + rank] = 1


class _Staged:
    """Boxes in local memory, for all work-items of a work-group to compare with theirs."""

    def __init__(self, size: int, grouped: bool) -> None:
        self._size, self._grouped = size, grouped
        numbers = len(Box._fields) * size
        self._numbers = T.buffer_proxy(T.decl_buffer([numbers], BOX_DTYPE, scope="shared"))
        if grouped:
            self._groups = T.buffer_proxy(T.decl_buffer([size], "int32", scope="shared"))

    def fill(
        self, item: tirx.Expr, items: int, count: tirx.Expr, load: Callable[[tirx.Expr], Any]
    ) -> None:
        """Store `count` boxes into the slots, by all work-items; nothing into those after them."""
        with T.serial(0, -(-self._size // items)) as step:
            slot = hold(step * items + item)
            with when(slot < self._size), T.If(slot < count):
                with T.Then():
                    box, group = load(slot)
                    self._set(slot, box)
                    if self._grouped:
                        self._groups[slot] = group
                with T.Else():
                    self._set(slot, NOWHERE)

    def _set(self, slot: tirx.Expr, box: Box) -> None:
        for i, number in enumerate(box):
            self._numbers[i * self._size + slot] = number

    def overlaps(self, slot: tirx.Expr, own: Any, overlap: Overlap) -> tirx.Expr:
        """Return whether a box overlaps with that of a slot, and is of its group."""
        box, group = own
        other = Box(*(hold(self._numbers[i * self._size + slot]) for i in range(len(box))))
        over = overlap.by_residual(other, box)
        return tirx.all(over, self._groups[slot] == group) if self._grouped else over


def _one() -> tirx.Expr:
    return tirx.const(1, "uint32")


def _zero() -> tirx.Expr:
    return tirx.const(0, "uint32")


def _spread_bit(word: tirx.Expr, bit: tirx.Expr) -> tirx.Expr:
    """Return all ones where a bit of a word is set."""
    return _zero() - ((word >> bit.astype("uint32")) & _one())
