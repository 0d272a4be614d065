"""Greedy non-maximum suppression on a CPU: each box is compared with many kept ones at once.

Many lists run on one core each. With few lists all cores compare a block of boxes with those kept
before it, and one core goes on within the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Tensor, register, when
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, NOWHERE, Box, Candidates, Overlap
from tvm_edge.schedules.vision.cpu.radix import sort_words
from tvm_edge.schedules.vision.keys import WORD, pack, position_of

__all__ = ["Suppression"]

# Scores compared with the threshold at once.
_SEEN = 64
# Kept boxes compared with a box at once.
_CHUNK = 32
# Boxes of a block that cores share.
_BLOCK = 1024
# Kept boxes above which sharing a block is worth it.
_MIN_TO_SHARE = 64


class Suppression:
    """Loops that choose from each of some lists, whose lengths the run may tell.

    The interface is that of :class:`tvm_edge.schedules.vision.gpu.nms.Suppression`.
    """

    workspace: tuple[Tensor, ...] = ()

    def __init__(
        self,
        lists: int,
        length: Any,
        most: Any,
        overlap: Overlap,
        spec: DeviceSpec,
        *,
        grouped: bool = False,
        considered: int | None = None,
    ) -> None:
        self._considered = length if considered is None else min(considered, length)
        self._lists, self._length, self._most = lists, length, most
        self._overlap, self._grouped = overlap, grouped
        self._cores = max(spec.cores, 1)

    def write(self, candidates: Candidates, kept: Any, counts: Any, _space: Any) -> None:
        """Write the loops; parameters as for a GPU."""
        share = 1 < self._cores > self._lists
        loop = T.serial if share or self._lists == 1 else T.parallel
        with loop(0, self._lists) as line:
            order, count = self._sort(line, candidates)
            chosen = _Kept(_least(self._most, self._length), self._grouped, self._overlap)

            def box(at: tirx.Expr, line: tirx.Expr = line, order: Any = order) -> Any:
                position = T.Bind(position_of(order[at]))
                group = candidates.group
                which = None if group is None else T.Bind(group(line, position))
                return position, (candidates.box(line, position), which)

            def offer(at: tirx.Expr, first: Any, line: Any = line, chosen: Any = chosen) -> None:
                """Keep a box unless one of those from `first` on suppresses it."""
                position, own = box(at)
                with when(chosen.suppress(own, first) == 0):
                    kept[line * self._most + chosen.count[0]] = position
                    chosen.append(own)

            if share:
                self._blocks(count, chosen, box, offer)
            else:
                at = register(tirx.IntImm("int32", 0))
                with T.While(tirx.all(at[0] < count, chosen.count[0] < self._most)):
                    offer(T.Bind(at[0]), tirx.IntImm("int32", 0))
                    at[0] = at[0] + 1
            counts[line] = chosen.count[0]

    def _sort(self, line: tirx.Expr, candidates: Candidates) -> tuple[Any, tirx.Expr]:
        """Sort the boxes that take part; return their words, and how many there are."""
        front, back = (T.buffer_proxy(T.decl_buffer([self._length], WORD)) for _ in range(2))
        count = register(tirx.IntImm("int32", 0))
        takes_part = candidates.takes_part

        def offer(at: tirx.Expr) -> None:
            # Written for all, counted for those that take part: nothing to mispredict.
            front[count[0]] = pack(candidates.key(line, at), at)
            part = 1 if takes_part is None else takes_part(line, at).astype("int32")
            count[0] = count[0] + part

        chunks = 0 if takes_part is None else self._length // _SEEN
        if takes_part is not None:
            with T.serial(0, chunks) as chunk:
                # Most scores are below a detector's threshold: many are compared at once.
                some = register(tirx.IntImm("int32", 0))
                with T.serial(0, _SEEN) as i:
                    some[0] = some[0] | takes_part(line, chunk * _SEEN + i).astype("int32")
                with when(some[0] != 0), T.serial(0, _SEEN) as i:
                    offer(T.Bind(chunk * _SEEN + i))
        with T.serial(chunks * _SEEN, self._length) as at:
            offer(at)
        total = T.Bind(count[0])
        sort_words(front, back, 0, total)
        return front, T.Bind(tirx.min(total, self._considered))

    def _blocks(
        self,
        count: tirx.Expr,
        chosen: _Kept,
        box: Callable[[tirx.Expr], Any],
        offer: Callable[[tirx.Expr, Any], None],
    ) -> None:
        gone = T.buffer_proxy(T.decl_buffer([_BLOCK], "int32"))
        start = register(tirx.IntImm("int32", 0))
        with T.While(tirx.all(start[0] < count, chosen.count[0] < self._most)):
            first, before = T.Bind(start[0]), register(chosen.count[0])
            length = T.Bind(tirx.min(count - first, _BLOCK))
            with T.If(before[0] >= _MIN_TO_SHARE):
                with T.Then(), T.parallel(0, self._cores) as part:
                    ends = [tirx.floordiv(length * (part + s), self._cores) for s in (0, 1)]
                    with T.serial(T.Bind(ends[0]), T.Bind(ends[1])) as at:
                        _, own = box(first + at)
                        gone[at] = chosen.suppress(own, tirx.IntImm("int32", 0))
                with T.Else():
                    before[0] = 0
                    with T.serial(0, length) as at:
                        gone[at] = 0
            at = register(tirx.IntImm("int32", 0))
            with T.While(tirx.all(at[0] < length, chosen.count[0] < self._most)):
                with when(gone[at[0]] == 0):
                    offer(T.Bind(first + at[0]), T.Bind(before[0]))
                at[0] = at[0] + 1
            start[0] = first + _BLOCK


def _least(a: Any, b: Any) -> Any:
    """Return the smaller of two lengths, numbers or of the run."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(a, b)


class _Kept:
    """Kept boxes of a list: one array for each number, so that loads are vectors."""

    def __init__(self, most: Any, grouped: bool, overlap: Overlap) -> None:
        self._overlap, self._grouped = overlap, grouped
        room = -(-most // _CHUNK) * _CHUNK
        self._numbers = [
            T.buffer_proxy(T.decl_buffer([room], BOX_DTYPE)) for _ in range(len(Box._fields))
        ]
        if grouped:
            self._groups = T.buffer_proxy(T.decl_buffer([room], "int32"))
        self.count = register(tirx.IntImm("int32", 0))

    def append(self, own: tuple[Box, Any]) -> None:
        """Append a box to the kept ones; it is known to fit."""
        box, group = own
        at = T.Bind(self.count[0])
        with when(tirx.floormod(at, _CHUNK) == 0):
            with T.serial(0, _CHUNK) as i:
                for numbers, nothing in zip(self._numbers, NOWHERE, strict=True):
                    numbers[at + i] = nothing
                if self._grouped:
                    self._groups[at + i] = 0
        for numbers, number in zip(self._numbers, box, strict=True):
            numbers[at] = number
        if self._grouped:
            self._groups[at] = group
        self.count[0] = at + 1

    def suppress(self, own: tuple[Box, Any], first: Any) -> tirx.Expr:
        """Return 1 where a kept box, of those from `first` on, suppresses another; else 0."""
        box, group = own
        count = T.Bind(self.count[0])
        hits = register(tirx.IntImm("int32", 0))
        at = register(tirx.floordiv(first, _CHUNK) * _CHUNK)

        def other(i: tirx.Expr) -> Box:
            return Box(*(numbers[at[0] + i] for numbers in self._numbers))

        def counts(over: tirx.Expr, i: tirx.Expr) -> tirx.Expr:
            same = [self._groups[at[0] + i] == group] if self._grouped else []
            return tirx.all(over, *same).astype("int32")

        with T.While(tirx.all(hits[0] == 0, at[0] < count)):
            some = register(tirx.IntImm("int32", 0))
            with T.serial(0, _CHUNK) as i:
                some[0] = some[0] | counts(self._overlap.might(other(i), box), i)
            with when(some[0] != 0), T.serial(0, _CHUNK) as i:
                hits[0] = hits[0] | counts(self._overlap.by_division(other(i), box), i)
            at[0] = at[0] + _CHUNK
        return T.Bind(hits[0])
