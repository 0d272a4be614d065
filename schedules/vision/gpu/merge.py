"""Building blocks of merge sorts on GPUs: tiles, sorting networks, merge paths.

Elements are 64-bit words that hold a key and, below it, a position. No two are equal, so that every
way to sort them is stable.

Merge path: Green, McColl, Bader, "GPU merge path", ICS'12. Merge exchange: Knuth, TAOCP 5.2.2 M.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import barrier, hold, launch, register, registers, when
from tvm_edge.schedules.gpu.launch import power_of_two
from tvm_edge.schedules.vision.keys import WORD

__all__ = [
    "LAST",
    "Lists",
    "Read",
    "Tile",
    "choose_tile",
    "merge_tile",
    "pack_in_tile",
    "position_bits",
    "position_in_tile",
    "sort_tile",
]

LAST = tirx.const((1 << 64) - 1, WORD)
"""Word that comes after every element: it pads a tile."""

Read = Callable[[tirx.Expr], tirx.Expr]
"""Return the element at a position."""
Store = Callable[[tirx.Expr, tirx.Expr], None]
"""Write an element to a position."""

# Work-items of a work-group, and elements of a work-item in registers. An odd number of elements
# keeps neighbours in different banks of local memory.
_MOST_ITEMS, _EACH_FEW = 512, 5
_ITEMS_SHORT, _EACH_SHORT = 256, 7
_EACH_MANY = 15
# Elements for each core above which there are many.
_MANY_PER_CORE = 4096
_EACH_ALONE = 8


@dataclass(frozen=True)
class Tile:
    """Number of elements that are sorted at once, and the work-items that sort them.

    Attributes
    ----------
    items : int
        Work-items of a work-group.
    each : int
        Elements that one work-item holds in registers.
    shared : bool
        Whether a work-group sorts a tile together in local memory; else each work-item has its own.
    """

    items: int
    each: int
    shared: bool

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return self.items * self.each if self.shared else self.each

    def for_each(self, tiles: int, body: Callable[[tirx.Expr, tirx.Expr], None]) -> None:
        """Write a kernel over tiles; `body` writes the code of a tile, given its work-item.

        In a tile that is not shared the work-item is number 0.
        """
        if self.shared:
            with launch(tiles, self.items) as (group, item):
                body(group, item)
            return
        with launch(-(-tiles // self.items), self.items) as (group, item):
            tile = hold(group * self.items + item)
            with when(tile < tiles):
                body(tile, tirx.IntImm("int32", 0))

    @contextmanager
    def slots(self, item: tirx.Expr) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
        """Yield statements for each element of a work-item: its number and position in the tile.

        Neighbours have neighbouring positions, so that they load and store side by side.
        """
        with T.unroll(0, self.each) as e:
            yield e, item + e * (self.items if self.shared else 1)


def choose_tile(spec: DeviceSpec, length: int, rows: int = 1) -> Tile:
    """Choose a tile for rows of `length`: shared where a device has local memory on the chip."""
    items = power_of_two(min(spec.max_work_group_size, _MOST_ITEMS))
    room = spec.local_memory // 2 if spec.local_memory_kind == "dedicated" else 0
    # Many elements: long tiles, few passes. Few: tiles for all cores.
    each = _EACH_MANY if rows * length >= _MANY_PER_CORE * max(spec.cores, 1) else _EACH_FEW
    if each == _EACH_MANY or length <= _ITEMS_SHORT * _EACH_SHORT:
        items = min(items, _ITEMS_SHORT)
    if length <= items * _EACH_SHORT:
        each = _EACH_SHORT
    while items > 16 and items * each * 8 > room:
        items //= 2
    if items >= 16 and items * each * 8 <= room:
        return Tile(items, each, shared=True)
    return Tile(min(64, spec.max_work_group_size), _EACH_ALONE, shared=False)


def position_bits(tile: Tile) -> int:
    """Bits of a position in a tile."""
    return (tile.size - 1).bit_length()


def pack_in_tile(tile: Tile, segment: tirx.Expr, key: tirx.Expr, position: tirx.Expr) -> tirx.Expr:
    """Pack a word that sorts by segment first; segment and position are below the tile's size."""
    # Products, not shifts: TVM does not fold a shift of constants, such as that of a row which is
    # the same for all work-items. It passes the value to the kernel, which no driver accepts.
    bits = position_bits(tile)
    return (
        segment.astype(WORD) * tirx.const(1 << (32 + bits), WORD)
        + key.astype(WORD) * tirx.const(1 << bits, WORD)
        + position.astype(WORD)
    )


def position_in_tile(tile: Tile, word: tirx.Expr) -> tirx.Expr:
    """Return the position in a word of :func:`pack_in_tile`."""
    return (word & tirx.const((1 << position_bits(tile)) - 1, WORD)).astype("int32")


def sort_tile(tile: Tile, item: tirx.Expr, load: Read, store: Store) -> None:
    """Sort a tile.

    Parameters
    ----------
    tile : Tile
    item : tirx.Expr
        The work-item.
    load : Read
        The element of a slot of the tile; :data:`LAST` for slots to be left out.
    store : Store
        Called with each slot and its element in order.
    """
    own = registers(tile.each, WORD)
    with tile.slots(item) as (e, slot):
        own[e] = load(slot)
    _network(own, tile.each)
    if not tile.shared:
        with tile.slots(item) as (e, slot):
            store(slot, own[e])
        return
    local = T.buffer_proxy(T.decl_buffer([tile.size], WORD, scope="shared"))
    _share(local, own, tile, item)
    with T.serial(0, tile.items.bit_length() - 1) as step:
        # Lists of as many work-items' elements are merged in pairs.
        lists = hold(tirx.IntImm("int32", 1) << step)
        width = hold(lists * tile.each)
        pair = hold(((item >> (step + 1)) << (step + 1)) * tile.each)
        diagonal = hold(item * tile.each - pair)
        split = _merge_path(local.__getitem__, pair, width, pair + width, width, diagonal)
        left, right = pair + split, pair + width + diagonal - split
        _merge(local.__getitem__, left, pair + width, right, pair + 2 * width, own, tile.each)
        barrier()
        _share(local, own, tile, item)
    with tile.slots(item) as (_, slot):
        store(slot, local[slot])


@dataclass(frozen=True)
class Lists:
    """Two neighbouring sorted lists, and the part of their merger that a tile computes.

    Attributes
    ----------
    start, middle, stop : tirx.Expr
        The lists are ``[start, middle)`` and ``[middle, stop)``.
    first, last : tirx.Expr
        The tile's part of ``[start, stop)``.
    """

    start: tirx.Expr
    middle: tirx.Expr
    stop: tirx.Expr
    first: tirx.Expr
    last: tirx.Expr


def merge_tile(tile: Tile, item: tirx.Expr, lists: Lists, read: Read, store: Store) -> None:
    """Merge the part of two lists that belongs to a tile."""
    begin, skip = lists.first - lists.start, lists.middle - lists.start
    lengths = (skip, lists.stop - lists.middle)
    own = registers(tile.each, WORD)
    if not tile.shared:
        split = _merge_path(read, lists.start, lengths[0], lists.middle, lengths[1], begin)
        left, right = lists.start + split, lists.middle + begin - split
        _merge(read, left, lists.middle, right, lists.stop, own, tile.each)
        with tile.slots(item) as (e, slot), when(lists.first + slot < lists.last):
            store(lists.first + slot, own[e])
        return
    local = T.buffer_proxy(T.decl_buffer([tile.size], WORD, scope="shared"))
    ends = T.buffer_proxy(T.decl_buffer([2], "int32", scope="shared"))
    with when(item < 2):
        diagonal = hold(tirx.Select(item == 0, lists.first, lists.last) - lists.start)
        ends[item] = _merge_path(read, lists.start, lengths[0], lists.middle, lengths[1], diagonal)
    barrier()
    left = hold(ends[0])
    total = hold(lists.last - lists.first)
    # Invalid offsets leave lists out of order: splits may then lie anywhere.
    lefts = hold(tirx.max(0, tirx.min(ends[1] - left, total)))
    with tile.slots(item) as (_, slot), when(slot < total):
        at = tirx.Select(
            slot < lefts,
            lists.start + left + slot,
            lists.middle + (begin - left) + (slot - lefts),
        )
        local[slot] = read(hold(at))
    barrier()
    diagonal = hold(tirx.min(item * tile.each, total))
    rights = total - lefts
    split = _merge_path(local.__getitem__, 0, lefts, lefts, rights, diagonal)
    _merge(local.__getitem__, split, lefts, lefts + diagonal - split, total, own, tile.each)
    barrier()
    _share(local, own, tile, item)
    with tile.slots(item) as (_, slot), when(slot < total):
        store(lists.first + slot, local[slot])


def _share(local: Any, own: Any, tile: Tile, item: tirx.Expr) -> None:
    """Store the work-items' elements next to each other in local memory."""
    with T.unroll(0, tile.each) as e:
        local[item * tile.each + e] = own[e]
    barrier()


def _network(own: Any, count: int) -> None:
    """Sort registers by merge exchange."""
    low = registers(1, WORD)

    def exchange(i: int, j: int) -> None:
        low[0] = tirx.min(own[i], own[j])
        own[j] = tirx.max(own[i], own[j])
        own[i] = low[0]

    for i, j in _exchanges(count):
        exchange(i, j)


def _exchanges(count: int) -> list[tuple[int, int]]:
    """Return pairs to put in order, one after the other, so that `count` elements are sorted."""
    pairs = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def _merge_path(
    read: Read,
    left: Any,
    lefts: Any,
    right: Any,
    rights: Any,
    diagonal: tirx.Expr,
) -> tirx.Expr:
    """Count the elements of the left list among the first `diagonal` of a merger."""
    low = register(tirx.max(0, diagonal - rights))
    high = register(tirx.min(diagonal, lefts))
    with T.While(low[0] < high[0]):
        middle = hold((low[0] + high[0]) // 2)
        before = hold(read(left + middle) < read(right + diagonal - 1 - middle))
        low[0] = tirx.Select(before, middle + 1, low[0])
        high[0] = tirx.Select(before, high[0], middle)
    return hold(low[0])


def _merge(
    read: Read,
    left: Any,
    left_end: Any,
    right: Any,
    right_end: Any,
    own: Any,
    count: int,
) -> None:
    """Merge the next `count` elements of two lists; :data:`LAST` after them."""

    def peek(at: tirx.Expr, end: Any) -> tirx.Expr:
        return tirx.if_then_else(at < end, read(at), LAST)

    heads = registers(2, WORD)
    at = registers(2, "int32")
    at[0], at[1] = left, right
    heads[0], heads[1] = peek(at[0], left_end), peek(at[1], right_end)
    with T.unroll(0, count) as e:
        own[e] = tirx.min(heads[0], heads[1])
        take = hold(heads[0] < heads[1])
        step = hold(tirx.Select(take, at[0], at[1]) + 1)
        following = hold(peek(step, tirx.Select(take, left_end, right_end)))
        at[0] = tirx.Select(take, step, at[0])
        at[1] = tirx.Select(take, at[1], step)
        heads[0] = tirx.Select(take, following, heads[0])
        heads[1] = tirx.Select(take, heads[1], following)
