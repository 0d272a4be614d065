"""Tiles that are read across the direction in which they are written, transposed by shuffles.

Of loads across vectors LLVM makes one for each element: a cycle an element, where shuffles of whole
vectors transpose four. Such tiles pack images into channel blocks and unpack them, and move an axis
of channels to the end or back.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.schedules.accesses import IF_THEN_ELSE, constant, nodes_in, uses

__all__ = ["TransposeTiles"]

_GROUP = 4
"""Elements of 128 bits, inside of which shuffles take a cycle on every CPU."""

_WIDEST, _MOST_ROWS = 16, 32
_BITS = 32


@tvm.transform.module_pass(opt_level=0, name="TransposeTiles")
class TransposeTiles:
    """Transpose tiles of 32-bit elements in registers.

    Runs before ``VectorizeLoop``. A tile is a loop around a vector loop around a single store, at
    the extents that ``LoopPartition`` left.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = tvm_ffi.structural_map(func.body, (tirx.For, _transposed))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _transposed(rows: tirx.For) -> tirx.Stmt:
    lanes = rows.body
    if rows.kind != tirx.ForKind.SERIAL or not isinstance(lanes, tirx.For):
        return rows
    body = _unconditional(lanes.body)
    if lanes.kind != tirx.ForKind.VECTORIZED or not isinstance(body, tirx.BufferStore):
        return rows
    lanes = tirx.For(lanes.loop_var, lanes.min, lanes.extent, lanes.kind, body)
    height, width = constant(rows.extent), constant(lanes.extent)
    starts_at_0 = constant(rows.min) == constant(lanes.min) == 0
    if not starts_at_0 or height is None or width is None:
        return rows
    if not _GROUP <= height <= _MOST_ROWS or width < _GROUP:
        return rows
    across = _loads_across(rows, lanes)
    if not across:
        return rows
    made: list[tirx.Stmt] = []
    first = 0
    for size in (_WIDEST, _WIDEST // 2, _GROUP):
        while width - first >= size:
            made += _tile(rows, lanes, across, first, size)
            first += size
    if first < width:
        made.append(_rest(rows, lanes, first))
    return tirx.SeqStmt(made) if len(made) > 1 else made[0]


def _unconditional(body: tirx.Stmt) -> tirx.Stmt:
    """Return a body without a condition that ``LoopPartition`` found to be true."""
    known = isinstance(body, tirx.IfThenElse) and constant(sym.Analyzer().simplify(body.condition))
    return body.then_case if known == 1 else body


def _loads_across(rows: tirx.For, lanes: tirx.For) -> list[ir.TensorLoad]:
    """Return the loads whose neighbours in memory are rows of the tile, and not its lanes."""
    store = lanes.body
    if any(call.op.same_as(IF_THEN_ELSE) for call in nodes_in(store.value, ir.Call)):
        return []  # what is beyond the condition may be no memory
    found: list[ir.TensorLoad] = []
    for load in nodes_in(store.value, ir.TensorLoad):
        index, dtype = load.indices[-1], tvm.DataType(str(load.source.dtype))
        if len(load.indices) != 1 or dtype.bits != _BITS or dtype.lanes != 1:
            continue
        if load.source.same_as(store.buffer) or nodes_in(index, ir.TensorLoad):
            continue
        if any(tvm_ffi.structural_equal(load, other) for other in found):
            continue
        row, lane = rows.loop_var, lanes.loop_var
        if uses(index, lane) and _step(index, row, rows) == 1 != _step(index, lane, lanes):
            found.append(load)
    return found


def _step(index: tirx.Expr, var: tirx.Var, loop: tirx.For) -> int | None:
    """Return the difference between neighbouring steps of a loop, ``None`` where it varies."""
    analyzer = sym.Analyzer()
    analyzer.bind(var, tvm.ir.Range(0, loop.extent - 1))
    return constant(analyzer.simplify(_with(index, var, var + 1) - index))


def _tile(
    rows: tirx.For, lanes: tirx.For, across: Sequence[ir.TensorLoad], first: int, size: int
) -> list[tirx.Stmt]:
    """Write statements for all rows of `size` lanes from the `first` one on."""
    height, made = int(rows.extent), []
    tiles: list[tirx.Buffer] = []
    for load in across:
        dtype = str(load.source.dtype)
        tile = tirx.decl_buffer((height * size,), dtype, "tile", scope="local")
        made.append(tirx.AllocBuffer(tile))
        for start, wide in _pieces(height, size):
            made += _Piece(load, rows, lanes, first, size).transposed(tile, start, wide)
        tiles.append(tile)
    for number in range(height):
        lane = tirx.Var(lanes.loop_var.name, lanes.loop_var.ty.dtype)
        row = tirx.const(number, rows.loop_var.ty.dtype)

        def taken(node: tirx.Expr, number: int = number, lane: tirx.Var = lane) -> tirx.Expr:
            for load, tile in zip(across, tiles, strict=True):
                if tvm_ffi.structural_equal(node, load):
                    return tirx.BufferLoad(tile, [lane + number * size])
            return node

        body = tvm_ffi.structural_map(lanes.body, (ir.TensorLoad, taken), order="pre")
        body = _with(_with(body, lanes.loop_var, lane + first), rows.loop_var, row)
        made.append(tirx.For(lane, 0, size, tirx.ForKind.VECTORIZED, body))
    return made


def _pieces(height: int, size: int) -> list[tuple[int, int]]:
    """Cut rows into pieces of a width that can be transposed; the last may overlap."""
    wide = next(w for w in (_WIDEST, _WIDEST // 2, _GROUP) if w <= min(height, size))
    starts = [*range(0, height - wide + 1, wide)]
    if height % wide:
        starts.append(height - wide)
    return [(start, wide) for start in starts]


def _rest(rows: tirx.For, lanes: tirx.For, first: int) -> tirx.Stmt:
    """Return the loops over lanes that fill no group."""
    lane, count = tirx.Var(lanes.loop_var.name, lanes.loop_var.ty.dtype), int(lanes.extent) - first
    body = _with(lanes.body, lanes.loop_var, lane + first)
    kind = tirx.ForKind.VECTORIZED if count > 1 else tirx.ForKind.SERIAL
    inner = tirx.For(lane, 0, count, kind, body)
    return tirx.For(rows.loop_var, 0, rows.extent, tirx.ForKind.SERIAL, inner)


class _Piece:
    """Statements that transpose some rows of some lanes, and the variables they bind."""

    def __init__(
        self, load: ir.TensorLoad, rows: tirx.For, lanes: tirx.For, first: int, size: int
    ) -> None:
        self._load, self._rows, self._lanes = load, rows, lanes
        self._first, self._size = first, size
        self._dtype = str(load.source.dtype)
        self._made: list[tirx.Stmt] = []

    def transposed(self, tile: tirx.Buffer, start: int, wide: int) -> list[tirx.Stmt]:
        """Load vectors of `wide` rows from `start` on; store one of each row into a tile."""
        loaded = [self._loaded(lane, start, wide) for lane in range(self._size)]
        quads = [self._quad(loaded[at : at + _GROUP], wide) for at in range(0, self._size, _GROUP)]
        for column in range(_GROUP):
            own = [quad[column] for quad in quads]
            for group, vector in enumerate(self._joined(own, wide)):
                place = (start + group * _GROUP + column) * self._size
                where = tirx.Ramp(tirx.const(place, "int32"), tirx.const(1, "int32"), self._size)
                self._made.append(tirx.BufferStore(tile, vector, [where]))
        return self._made

    def _loaded(self, lane: int, start: int, wide: int) -> tirx.Var:
        row, column = self._rows.loop_var, self._lanes.loop_var
        index = _with(self._load.indices[0], column, tirx.const(lane + self._first, "int32"))
        index = sym.Analyzer().simplify(_with(index, row, tirx.const(start, "int32")))
        place = tirx.Ramp(index, tirx.const(1, index.ty.dtype), wide)
        return self._bound(tirx.BufferLoad(self._load.source, [place]), wide)

    def _quad(self, vectors: Sequence[tirx.Var], wide: int) -> list[tirx.Var]:
        """Transpose four vectors inside groups: the k-th result has the k-th elements of each."""
        a, b, c, d = vectors
        made: list[tirx.Var] = []
        for places in ((0, 1), (2, 3)):
            first, second = (self._interleaved(x, y, wide, places, 1) for x, y in ((a, b), (c, d)))
            made += [self._interleaved(first, second, wide, (at,), 2) for at in (0, 2)]
        return made

    def _interleaved(
        self, a: tirx.Var, b: tirx.Var, wide: int, places: Sequence[int], run: int
    ) -> tirx.Var:
        """Take runs of elements at some places of each group, in turns from two vectors."""
        indices = [
            group + side * wide + place + step
            for group in range(0, wide, _GROUP)
            for place in places
            for side in (0, 1)
            for step in range(run)
        ]
        return self._shuffled(a, b, indices)

    def _joined(self, vectors: Sequence[tirx.Var], wide: int) -> list[tirx.Var]:
        """For each group of the vectors, return a vector of this group of all."""
        groups = range(wide // _GROUP)
        if len(vectors) == 1:
            return list(vectors)
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        if len(vectors) == _GROUP == len(groups):  # two shuffles a result, not three
            joined = {}
            for first in (0, 1):
                low, high = (self._of_groups(a, b, wide, [first, first + 2]) for a, b in pairs)
                for at in (0, 1):
                    joined[first + 2 * at] = self._of_groups(low, high, wide, [at, at + 2])
            return [joined[group] for group in groups]
        made: list[tirx.Var] = []
        for group in groups:
            own = [self._of_groups(a, b, wide, [group]) for a, b in pairs]
            made.append(
                own[0] if len(own) == 1 else self._of_groups(own[0], own[1], 2 * _GROUP, [0, 1])
            )
        return made

    def _of_groups(self, a: tirx.Var, b: tirx.Var, wide: int, groups: Sequence[int]) -> tirx.Var:
        indices = [
            side * wide + group * _GROUP + step
            for side in (0, 1)
            for group in groups
            for step in range(_GROUP)
        ]
        return self._shuffled(a, b, indices)

    def _shuffled(self, a: tirx.Var, b: tirx.Var, indices: Sequence[int]) -> tirx.Var:
        places = [tirx.IntImm("int32", index) for index in indices]
        return self._bound(tirx.Shuffle([a, b], places), len(indices))

    def _bound(self, value: tirx.Expr, lanes: int) -> tirx.Var:
        var = tirx.Var("vector", f"{self._dtype}x{lanes}")
        self._made.append(tirx.Bind(var, value))
        return var


def _with(node: tirx.Expr | tirx.Stmt, var: tirx.Var, value: tirx.Expr) -> tirx.Expr | tirx.Stmt:
    return tvm_ffi.structural_map(
        node, (tirx.Var, lambda other: value if other.same_as(var) else other)
    )
