"""Prefix sums in three stages (ICPP'19 §3.1.1, Figure 3).

Up-sweep: every work-group reduces its tile, each work-item a few elements in registers. Scan: one
work-group scans the tiles' totals. Down-sweep: every work-group scans its tile again, on top of the
total before it. No kernel waits for another work-group: OpenCL does not promise that work-groups
make progress together. Within a work-group the work-items' totals are scanned as Hillis and Steele
do, in log2 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import (
    Kernel,
    Tensor,
    barrier,
    function,
    hold,
    launch,
    register,
    registers,
    when,
)
from tvm_edge.schedules.gpu.launch import power_of_two
from tvm_edge.schedules.vision.operators import OPERATORS, Associative

__all__ = ["LineScan", "scan_lines"]

Load = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
"""Return the element of a line at a position."""
Store = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None]
"""Store the result for a line and a position."""

# Work-items of a work-group and elements of each; more where there are fewer lines than cores.
_ITEMS, _EACH = 256, 15
_ITEMS_FEW, _EACH_FEW = 512, 19
# Lines, for each core, that fill the device with a work-item for each.
_LINES_PER_CORE = 512
# Totals of other tiles that a work-item adds up itself.
_TOTALS_EACH = 16
# Elements of a work-item where it works alone.
_EACH_ALONE = 32
# Tiles that a work-group scans one after the other before it shares them with others.
_SERIAL_TILES = 4


def scan_lines(
    outer: int,
    length: int,
    inner: int,
    dtype: str,
    out_dtype: str,
    spec: DeviceSpec,
    *,
    operator: str = "add",
    exclusive: bool = False,
    reverse: bool = False,
) -> Kernel:
    """Scan the middle axis of ``(outer, length, inner)``.

    Parameters
    ----------
    outer, length, inner : int
        At least 1.
    dtype, out_dtype : str
        The scan is calculated in `out_dtype`, float16 in float32.
    spec : DeviceSpec
    operator : str
        A name of :data:`~tvm_edge.schedules.vision.operators.OPERATORS`.
    exclusive : bool
        Whether an element is left out of its own result.
    reverse : bool
        Whether to begin at the end.

    Returns
    -------
    Kernel
        ``(data, result, workspace...)``, all flat.
    """
    kind = "float32" if out_dtype == "float16" else out_dtype
    lines, total = outer * inner, outer * length * inner
    plan = LineScan(lines, length, kind, OPERATORS[operator], exclusive, spec)

    def body(data: Any, result: Any, *space: Any) -> None:
        def address(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            where = length - 1 - at if reverse else at
            if inner == 1:
                return line * length + where
            across = tirx.floordiv(line, inner) * (length * inner) + tirx.floormod(line, inner)
            return across + where * inner

        def load(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return data[address(line, at)].astype(kind)

        def store(line: tirx.Expr, at: tirx.Expr, value: tirx.Expr) -> None:
            result[address(line, at)] = value.astype(out_dtype)

        plan.write(load, store, space)

    return function([([total], dtype)], [([total], out_dtype), *plan.workspace], body)


class LineScan:
    """Scan of lines on a device, and its kernels.

    Other kernels use it through callbacks: for a compaction `load` is a flag, and `store` gets
    the place of an element. `load` may be called for a position more than once; `store` is called
    once for each, in the last kernel.

    Parameters
    ----------
    lines, length : int
        At least 1.
    kind : str
        Type of the calculation.
    operator : Associative
    exclusive : bool
        Whether an element is left out of its own result.
    spec : DeviceSpec
    """

    def __init__(
        self,
        lines: int,
        length: int,
        kind: str,
        operator: Associative,
        exclusive: bool,
        spec: DeviceSpec,
    ) -> None:
        self.lines, self.length, self.kind, self.exclusive = lines, length, kind, exclusive
        self.combine = operator.combine
        self.identity = operator.identity(kind)
        self.spec = spec
        cores = max(spec.cores, 1)
        # Where lines do not fill the device, larger work-groups need fewer steps for theirs.
        few = lines < cores
        most, room = (_ITEMS_FEW, spec.local_memory) if few else (_ITEMS, spec.local_memory // 2)
        self.items = power_of_two(min(most, spec.max_work_group_size))
        bytes_each = 8 if kind.endswith("64") else 4
        # A tile, and two copies of the work-items' totals.
        fits = room // (self.items * bytes_each) - 2
        self.shared = spec.local_memory_kind == "dedicated" and fits >= 3
        if self.shared:
            wanted = -(-length // self.items)
            if wanted > _EACH_FEW or not few:  # several tiles: enough of them for all cores
                wanted = min(_EACH, -(-lines * length // (self.items * cores * 2)))
            # Odd: neighbours are in different banks of local memory.
            self.each = min(max(wanted, 3) | 1, (fits - 1) | 1)
        else:
            self.each = _EACH_ALONE
        self.tile = self.each * (self.items if self.shared else 1)
        self.tiles = -(-length // self.tile)
        self.alone = length <= _EACH_ALONE or lines >= cores * _LINES_PER_CORE
        serial = self.shared and (self.tiles <= _SERIAL_TILES or lines >= 2 * cores)
        self.in_one = self.tiles == 1 or serial
        # A work-group can add up itself the totals before its tile, if these are few.
        self.in_two = self.shared and self.tiles <= _TOTALS_EACH * self.items
        self.totals: LineScan | None = None
        if not (self.alone or self.in_one or self.in_two):
            self.totals = LineScan(lines, self.tiles, kind, operator, True, spec)

    @property
    def workspace(self) -> list[Tensor]:
        """Totals of the tiles, those of the tiles of totals, and so on."""
        if self.alone or self.in_one:
            return []
        further = self.totals.workspace if self.totals is not None else []
        return [([self.lines * self.tiles], self.kind), *further]

    def write(self, load: Load, store: Store, space: Any) -> None:
        """Write the kernels; `space` are buffers for :attr:`workspace`."""
        if self.alone:
            self._alone(load, store)
        elif self.in_one:
            self._one_kernel(load, store)
        else:
            self._three_stages(load, store, space)

    def _alone(self, load: Load, store: Store) -> None:
        """Write the kernel with a work-item for each line."""
        items = min(64, self.spec.max_work_group_size)
        with launch(-(-self.lines // items), items) as (group, item):
            line = hold(group * items + item)
            with when(line < self.lines):
                self._scan_serially(line, 0, self.length, register(self.identity), load, store)

    def _scan_serially(
        self, line: Any, first: Any, count: Any, sofar: Any, load: Load, store: Store
    ) -> None:
        with T.serial(0, count) as step:
            at = first + step
            before = hold(sofar[0])
            after = hold(self.combine(before, load(line, at)))
            store(line, at, before if self.exclusive else after)
            sofar[0] = after

    def _one_kernel(self, load: Load, store: Store) -> None:
        """Write the kernel with a work-group for each line, tile after tile."""
        with launch(self.lines, self.items) as (line, item):
            sofar = register(self.identity)
            scan = _GroupScan(self, item)
            with T.serial(0, self.tiles) as tile:
                scan(line, tile * self.tile, sofar, load, store)

    def _three_stages(self, load: Load, store: Store, space: Any) -> None:
        totals = space[0]
        self._for_each_tile(lambda line, tile, item: self._reduce(line, tile, item, load, totals))

        def load_total(line: tirx.Expr, tile: tirx.Expr) -> tirx.Expr:
            return totals[line * self.tiles + tile]

        def store_total(line: tirx.Expr, tile: tirx.Expr, before: tirx.Expr) -> None:
            totals[line * self.tiles + tile] = before

        if self.totals is not None:
            self.totals.write(load_total, store_total, space[1:])

        def down(line: tirx.Expr, tile: tirx.Expr, item: tirx.Expr) -> None:
            first = tile * self.tile
            if not self.shared:
                sofar = register(load_total(line, tile))
                count = tirx.min(self.tile, self.length - first)
                self._scan_serially(line, first, count, sofar, load, store)
                return
            scan = _GroupScan(self, item)
            if self.totals is None:
                sofar = register(scan.before(line, tile, load_total))
            else:
                sofar = register(load_total(line, tile))
            scan(line, first, sofar, load, store)

        self._for_each_tile(down)

    def _for_each_tile(self, body: Callable[..., None]) -> None:
        tiles = self.lines * self.tiles
        if self.shared:
            with launch(tiles, self.items) as (group, item):
                line = hold(tirx.floordiv(group, self.tiles))
                body(line, hold(tirx.floormod(group, self.tiles)), item)
            return
        items = min(64, self.spec.max_work_group_size)
        with launch(-(-tiles // items), items) as (group, item):
            tile = hold(group * items + item)
            with when(tile < tiles):
                line = hold(tirx.floordiv(tile, self.tiles))
                body(line, hold(tirx.floormod(tile, self.tiles)), item)

    def _reduce(
        self, line: tirx.Expr, tile: tirx.Expr, item: tirx.Expr, load: Load, totals: Any
    ) -> None:
        """Reduce a tile to its total (up-sweep)."""
        first = tile * self.tile
        if not self.shared:
            sofar = register(self.identity)
            with T.serial(0, tirx.min(self.tile, self.length - first)) as step:
                sofar[0] = self.combine(sofar[0], load(line, first + step))
            totals[line * self.tiles + tile] = sofar[0]
            return
        scan = _GroupScan(self, item)
        scan.load(line, first, load)
        total = scan.reduce()
        with when(item == self.items - 1):
            totals[line * self.tiles + tile] = total


class _GroupScan:
    """Scan of a tile by a work-group in local memory."""

    def __init__(self, plan: LineScan, item: tirx.Expr) -> None:
        self._plan, self._item = plan, item
        self._tile = T.buffer_proxy(T.decl_buffer([plan.tile], plan.kind, scope="shared"))
        # Two copies: a step of Hillis and Steele reads one and writes the other.
        self._partial_sums = T.buffer_proxy(
            T.decl_buffer([2 * plan.items], plan.kind, scope="shared")
        )
        self._own = registers(plan.each, plan.kind)
        self._total = registers(1, plan.kind)

    def load(self, line: Any, first: Any, load: Load) -> None:
        """Load a tile: neighbours load neighbours; then each work-item reads its own elements."""
        plan, item = self._plan, self._item
        with T.unroll(0, plan.each) as e:
            slot = e * plan.items + item
            inside = first + slot < plan.length
            self._tile[slot] = tirx.if_then_else(inside, load(line, first + slot), plan.identity)
        barrier()
        with T.unroll(0, plan.each) as e:
            self._own[e] = self._tile[item * plan.each + e]

    def reduce(self) -> tirx.Expr:
        """Scan the work-items' partial sums; return this one's inclusive result."""
        total = register(self._own[0])
        with T.unroll(1, self._plan.each) as e:
            total[0] = self._plan.combine(total[0], self._own[e])
        self._among_items(total)
        return hold(total[0])

    def before(self, line: Any, tile: Any, load_total: Load) -> tirx.Expr:
        """Return the total of a line's tiles before one."""
        plan = self._plan
        count = -(-plan.tiles // plan.items)
        total = register(plan.identity)
        with T.unroll(0, count) as i:
            index = self._item * count + i
            found = tirx.if_then_else(index < tile, load_total(line, index), plan.identity)
            total[0] = plan.combine(total[0], found)
        self._among_items(total)
        whole = hold(self._partial_sums[self._end])
        barrier()
        return whole

    def _among_items(self, total: Any) -> None:
        """Scan one value of each work-item in place (Hillis and Steele).

        `self._total` is then the total before this work-item; the total of all is
        ``self._partial_sums[self._end]``.
        """
        plan, item = self._plan, self._item
        partial_sums, now = self._partial_sums, 0
        partial_sums[item] = total[0]
        barrier()
        distance = 1
        while distance < plan.items:
            earlier = partial_sums[now + tirx.max(item - distance, 0)]
            with when(item >= distance):
                total[0] = plan.combine(earlier, total[0])
            now = plan.items - now
            partial_sums[now + item] = total[0]
            barrier()
            distance *= 2
        self._total[0] = tirx.if_then_else(
            item > 0, partial_sums[now + tirx.max(item - 1, 0)], plan.identity
        )
        self._end = now + plan.items - 1

    def __call__(self, line: Any, first: Any, sofar: Any, load: Load, store: Store) -> None:
        """Scan a tile on top of `sofar`, and add its total to that."""
        plan, item = self._plan, self._item
        self.load(line, first, load)
        self.reduce()
        running = register(plan.combine(sofar[0], self._total[0]))
        sofar[0] = plan.combine(sofar[0], self._partial_sums[self._end])
        # Results go out through local memory: the elements after a work-item's own are others'.
        with T.unroll(0, plan.each) as e:
            before = hold(running[0])
            running[0] = plan.combine(before, self._own[e])
            self._tile[item * plan.each + e] = before if plan.exclusive else running[0]
        barrier()
        with T.unroll(0, plan.each) as e:
            slot = e * plan.items + item
            with when(first + slot < plan.length):
                store(line, first + slot, self._tile[slot])
        barrier()
