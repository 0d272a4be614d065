"""Analyses of a kernel for schedule rules, whatever the device.

TVM brings part of it: :mod:`tvm.s_tir.dlight.analysis` names blocks and the kinds of their loops,
:mod:`tvm.sym` solves for coefficients. Here is the rest: which blocks are plain loop nests and
which of them can be folded into another. How blocks access memory is in `accesses`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_sblock_info
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.schedules.accesses import IF_THEN_ELSE, accesses, constant, nodes_in

__all__ = [
    "accepts",
    "count_reductions",
    "divisors",
    "extent",
    "inline_spatial",
    "is_plain",
    "narrow_indices",
    "open_schedule",
    "plain_blocks",
    "root_blocks",
]

_INT32_MAX = 2**31 - 1
_INLINE_NODES = 256


def divisors(n: int, most: int | None = None) -> list[int]:
    """The divisors of `n` up to `most`, ascending."""
    limit = n if most is None else min(n, most)
    return [d for d in range(1, limit + 1) if n % d == 0]


def extent(sch: Schedule, loop: LoopRV) -> int | None:
    """Trip count of a loop, ``None`` if it is symbolic."""
    return constant(sch.get(loop).extent)


def accepts(primitive: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Apply a schedule primitive if TVM allows it here; say whether it did.

    For primitives whose conditions (complete blocks, compact data flow, bijective bindings) TVM
    only checks by raising. The schedule is unchanged when the answer is ``False``.
    """
    try:
        primitive(*args, **kwargs)
    except s_tir.ScheduleError:
        return False
    return True


# ------------------------------------------------------------------------------ the whole function


def narrow_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with 32-bit shapes, loops and indices, or as it is if that could overflow.

    Relax emits 64-bit loops. The lowering pass ``NarrowDataType`` makes them 32-bit but gives the
    loop a new variable and leaves the old one in ``pragma_loop_partition_hint``: the hint is lost
    and every vector loop with a remainder is emitted lane by lane (80 instead of 228 GFLOP/s on a
    3x3 convolution 56 wide). Narrowing before scheduling keeps the hint.

    Functions with 64-bit integer data or symbolic shapes are left alone.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    for buffer in (*func.params, *func.body.block.alloc_buffers):
        if not tirx.buffer.is_buffer_var(buffer) or buffer.dtype in ("int64", "uint64"):
            return func
        size = 1
        for dim in map(constant, buffer.shape):
            if dim is None:
                return func
            size *= dim
        if size > _INT32_MAX:
            return func
    wide = any(abs(int(value)) > _INT32_MAX for value in nodes_in(func.body, tirx.IntImm))
    if wide:
        return func
    return tirx.transform.ForceNarrowIndexToInt32()(ir.IRModule({"main": func}))["main"]


class _Unchecked(Schedule):
    """A schedule whose primitives do not look at the types of their arguments.

    TVM's decorator binds and compares each by Python's annotations, a third of what scheduling a
    network takes.
    """

    __slots__ = ()

    def copy(self) -> Schedule:
        copied = _Unchecked.__new__(_Unchecked)
        copied.__move_handle_from__(super().copy())
        return copied


for _name, _method in vars(Schedule).items():
    if _name != "copy" and (_plain := getattr(_method, "__wrapped__", None)) is not None:
        setattr(_Unchecked, _name, _plain)


def open_schedule(func: tirx.PrimFunc) -> Schedule:
    """A schedule of `func` with 32-bit indices where they suffice, and a loop around each block.

    A block without one (of a scalar) makes TVM's ``rfactor`` of its neighbours fail an internal
    check.
    """
    sch = _Unchecked(narrow_indices(func))
    for block in root_blocks(sch):
        if not sch.get_loops(block):
            sch.add_unit_loop(block)
    return sch


def root_blocks(sch: Schedule) -> list[SBlockRV]:
    """The blocks directly below the root, in order; empty if the function is not made of blocks."""
    func = sch.mod["main"]
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    return list(sch.get_child_blocks(sch.get_sblock(func.body.block.name_hint)))


def _plain_nests(func: tirx.PrimFunc) -> list[s_tir.SBlock | None]:
    """The block of each loop nest of a function, in order; ``None`` where it is not plain.

    A plain nest has one block, and one serial loop for each of the block's variables. All else
    (calls with side effects, sorting loops inside a block, nests that already hold a parallel
    loop) is somebody's finished schedule or nothing this package understands.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return [None]
    body = func.body.block.body
    return [_plain_block(stmt) for stmt in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]


def _plain_block(stmt: tirx.Stmt) -> s_tir.SBlock | None:
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or constant(stmt.predicate) != 1:
        return None
    block = stmt.block
    unit = [constant(var.dom.extent) == 1 for var in block.iter_vars]
    if len(loops) != len(unit) and (loops or not all(unit)):
        return None  # a block of a scalar need not have loops
    for loop, value, is_unit in zip(loops, stmt.iter_values, unit, strict=False):
        serial = loop.kind == tirx.ForKind.SERIAL and not len(loop.annotations)
        bound = constant(loop.min) == 0 and (is_unit or loop.loop_var.same_as(value))
        if not (serial and bound):
            return None
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    known = all(var.iter_type in kinds for var in block.iter_vars)
    return block if known and _straight_line(block.body) else None


def _straight_line(stmt: tirx.Stmt) -> bool:
    if isinstance(stmt, tirx.SeqStmt):
        return all(_straight_line(s) for s in stmt.seq)
    if isinstance(stmt, tirx.IfThenElse):
        return _straight_line(stmt.then_case) and (
            stmt.else_case is None or _straight_line(stmt.else_case)
        )
    return isinstance(stmt, tirx.BufferStore | tirx.Bind)


def count_reductions(func: tirx.PrimFunc) -> int | None:
    """Number of blocks of a function that reduce; ``None`` if a loop nest is not plain."""
    blocks = _plain_nests(func)
    if not blocks or None in blocks:
        return None
    return sum(
        any(var.iter_type == tirx.IterVar.CommReduce for var in block.iter_vars)
        for block in blocks
        if block is not None
    )


def plain_blocks(sch: Schedule, done: Sequence[SBlockRV]) -> Iterator[SBlockRV]:
    """Yield the blocks that are not in `done`, as long as they still are plain in their turn."""
    names = {sch.get(block).name_hint for block in done}
    for block in root_blocks(sch):
        if sch.get(block).name_hint not in names and is_plain(sch, block):
            yield block


def is_plain(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block stands in a plain loop nest of its own, not scheduled yet."""
    stmt = sch.get(block)
    return any(stmt.same_as(other) for other in _plain_nests(sch.mod["main"]))


# ------------------------------------------------------------------------------- folding of blocks


def _is_dear(value: tirx.Expr) -> bool:
    """Return whether an expression should be computed once and stored, not once for each use."""
    nodes = nodes_in(value, object)
    calls = (node for node in nodes if isinstance(node, ir.Call))
    return len(nodes) > _INLINE_NODES or any(not call.op.same_as(IF_THEN_ELSE) for call in calls)


def inline_spatial(sch: Schedule, keep: Collection[str] = ()) -> None:
    """Inline every block without a reduction into its consumers, outputs excepted.

    Left standing are blocks named in `keep`, those TVM cannot inline, and those used more than
    once that call a function (an exponential) or have grown long: copying a long expression at
    every step of a chain grows exponentially.
    """
    for block in root_blocks(sch):
        stmt = sch.get(block)
        if stmt.name_hint in keep or not is_plain(sch, block):
            continue
        if not get_sblock_info(sch, block).is_injective():
            continue
        consumers = sch.get_consumers(block)
        if not consumers or not isinstance(stmt.body, tirx.BufferStore):
            continue
        copies = sum(_reads(sch.get(c), stmt.writes[0].source) for c in consumers)
        if copies > 1 and _is_dear(stmt.body.value):
            continue
        accepts(sch.compute_inline, block)


def _reads(block: s_tir.SBlock, buffer: tirx.Buffer) -> int:
    return sum(a.buffer.same_as(buffer) for a in accesses(block)[0] if not a.is_store)
