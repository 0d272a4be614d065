"""What a schedule rule needs to know of a kernel, whatever the device.

TVM brings part of it: :mod:`tvm.s_tir.dlight.analysis` names blocks and the kinds of their loops,
:mod:`tvm.sym` solves for coefficients. Here is the rest: which blocks are plain loop nests, how
their accesses step through memory, and which of them can be folded into another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo, get_sblock_info
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV

__all__ = [
    "Access",
    "accepts",
    "accesses",
    "branch_conditions",
    "constant",
    "divisors",
    "extent",
    "inline_spatial",
    "is_copy",
    "is_plain",
    "iterations",
    "narrow_indices",
    "open_schedule",
    "plain_blocks",
    "root_blocks",
    "stride",
    "trailing_contiguous",
    "uses",
]

_IF_THEN_ELSE = ir.Op.get("prim.if_then_else")
_INT32_MAX = 2**31 - 1
_INLINE_NODES = 256


def divisors(n: int) -> list[int]:
    """The divisors of `n`, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def constant(expr: Any) -> int | None:
    """The value of an integer constant, ``None`` for anything symbolic."""
    return int(expr) if isinstance(expr, int | tirx.IntImm) else None


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
    wide = False

    def check(value: tirx.IntImm) -> None:
        nonlocal wide
        wide |= abs(int(value)) > _INT32_MAX

    tvm_ffi.structural_walk(func.body, (tirx.IntImm, check))
    if wide:
        return func
    return tirx.transform.ForceNarrowIndexToInt32()(ir.IRModule({"main": func}))["main"]


def open_schedule(func: tirx.PrimFunc) -> Schedule:
    """A schedule of `func` with 32-bit indices where they suffice, and a loop around each block.

    A block without one (of a scalar) makes TVM's ``rfactor`` of its neighbours fail an internal
    check.
    """
    sch = Schedule(narrow_indices(func))
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


def is_plain(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a block stands alone in a nest of serial loops, one loop for each of its variables.

    Everything else (calls with side effects, sorting loops inside a block, nests that already hold
    a parallel loop) is somebody's finished schedule or nothing this package understands.
    """
    realize = get_sblockrealize(sch, block)
    stmt = realize.block
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    if len(loops) != len(stmt.iter_vars) or constant(realize.predicate) != 1:
        return False
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    for i, (loop, value, var) in enumerate(
        zip(loops, realize.iter_values, stmt.iter_vars, strict=True)
    ):
        body = loop.body
        inner = loops[i + 1] if i + 1 < len(loops) else realize
        if (
            loop.kind != tirx.ForKind.SERIAL
            or len(loop.annotations)
            or constant(loop.min) != 0
            or not (loop.loop_var.same_as(value) or constant(var.dom.extent) == 1)
            or not body.same_as(inner)
            or var.iter_type not in kinds
        ):
            return False
    return _straight_line(stmt.body)


def _straight_line(stmt: tirx.Stmt) -> bool:
    if isinstance(stmt, tirx.SeqStmt):
        return all(_straight_line(s) for s in stmt.seq)
    if isinstance(stmt, tirx.IfThenElse):
        return _straight_line(stmt.then_case) and (
            stmt.else_case is None or _straight_line(stmt.else_case)
        )
    return isinstance(stmt, tirx.BufferStore | tirx.Bind)


def plain_blocks(sch: Schedule) -> list[SBlockInfo] | None:
    """Every block of the function, or ``None`` if one of them is not a plain loop nest."""
    blocks = root_blocks(sch)
    if not blocks or not all(is_plain(sch, block) for block in blocks):
        return None
    body = sch.mod["main"].body.block.body
    if len(blocks) != (len(body.seq) if isinstance(body, tirx.SeqStmt) else 1):
        return None  # statements between the nests
    return [get_sblock_info(sch, block) for block in blocks]


def iterations(info: SBlockInfo) -> int | None:
    """How often a block runs, ``None`` if that depends on a symbolic shape."""
    total = 1
    for dim in info.dom():
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


# ----------------------------------------------------------------------------- accesses of a block


@dataclass(frozen=True)
class Access:
    """One load or store of a block's body."""

    buffer: tirx.Buffer
    indices: Sequence[tirx.Expr]
    is_store: bool


def uses(node: Any, var: tirx.Var) -> bool:
    """Whether `var` occurs in an expression or statement."""
    found = False

    def visit(other: tirx.Var) -> None:
        nonlocal found
        found |= other.same_as(var)

    tvm_ffi.structural_walk(node, (tirx.Var, visit))
    return found


def _loads(node: Any) -> tuple[list[Access], list[tirx.Var]]:
    """The outermost loads below `node`, and the variables used outside any load."""
    loads: list[Access] = []
    variables: list[tirx.Var] = []

    def on_load(load: ir.TensorLoad) -> Any:
        loads.append(Access(load.source, load.indices, False))
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(
        node, ((ir.TensorLoad, on_load), (tirx.Var, variables.append)), order="pre"
    )
    return loads, variables


def accesses(block: s_tir.SBlock) -> tuple[list[Access], list[tirx.Var]]:
    """All loads and stores of a block, and the variables its body uses outside of indices.

    Loads inside the indices of another load (a gather) are listed as well.
    """
    found: list[Access] = []
    outside: list[tirx.Var] = []

    def walk(node: Any) -> None:
        loads, variables = _loads(node)
        outside.extend(variables)
        while loads:
            load = loads.pop()
            found.append(load)
            for index in load.indices:
                loads.extend(_loads(index)[0])

    for stmt in _statements(block.body):
        if isinstance(stmt, tirx.BufferStore):
            found.append(Access(stmt.buffer, stmt.indices, True))
            walk(stmt.value)
            for index in stmt.indices:
                found.extend(_loads(index)[0])
        elif isinstance(stmt, tirx.IfThenElse):
            walk(stmt.condition)
        else:
            walk(stmt.value)
    return found, outside


def branch_conditions(block: s_tir.SBlock) -> list[tirx.Expr]:
    """The comparisons that decide between the branches of a block's body."""
    found: list[tirx.Expr] = []

    def split(condition: tirx.Expr) -> None:
        if isinstance(condition, tirx.And | tirx.Or):
            split(condition.a)
            split(condition.b)
        elif isinstance(condition, tirx.Not):
            split(condition.a)
        else:
            found.append(condition)

    def on_call(call: ir.Call) -> None:
        if call.op.same_as(_IF_THEN_ELSE):
            split(call.args[0])

    tvm_ffi.structural_walk(
        block.body,
        ((ir.Call, on_call), (tirx.IfThenElse, lambda branch: split(branch.condition))),
    )
    return found


def _statements(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _statements(part)
        return
    yield stmt
    if isinstance(stmt, tirx.IfThenElse):
        yield from _statements(stmt.then_case)
        if stmt.else_case is not None:
            yield from _statements(stmt.else_case)


def stride(access: Access, var: tirx.Var) -> int | None:
    """Elements an access moves by when `var` grows by one; ``None`` if that is not a constant."""
    offset = access.buffer.offset_of(list(access.indices))
    if len(offset) != 1:
        return None
    coefficients = sym.detect_linear_equation(offset[0], [var])
    return constant(coefficients[0]) if len(coefficients) else None


def trailing_contiguous(block: s_tir.SBlock, count: int | None = None) -> int:
    """How many trailing variables of a block can be run through as one contiguous vector.

    With the last `k` variables fused, every access must go through memory element by element or
    not move at all (a scalar, a broadcast).

    Parameters
    ----------
    block : SBlock
        A plain block.
    count : int, optional
        Look at the first `count` variables only: the spatial ones of a reduction.
    """
    found, outside = accesses(block)
    iters = list(block.iter_vars)[:count]
    inner = 1  # elements below the variable looked at
    moving: dict[int, bool] = {}  # whether access i moves with the variables taken so far
    value_used = False  # whether one of them is used as a value: fused it would be a remainder
    for taken, iter_var in enumerate(reversed(iters)):
        var, size = iter_var.var, constant(iter_var.dom.extent)
        if size == 1:
            continue
        is_value = any(var.same_as(v) for v in outside)
        if size is None or (inner > 1 and (is_value or value_used)):
            return taken
        for i, access in enumerate(found):
            step = stride(access, var)
            if step not in (0, inner) or moving.setdefault(i, step != 0) != (step != 0):
                return taken
        value_used = is_value
        inner *= size
    return len(iters)


# ------------------------------------------------------------------------------- folding of blocks


def is_copy(block: s_tir.SBlock) -> bool:
    """Whether a block copies one buffer to another of the same shape, index by index."""
    body = block.body
    return (
        isinstance(body, tirx.BufferStore)
        and isinstance(body.value, ir.TensorLoad)
        and len(body.indices) == len(body.value.indices)
        and all(
            tvm_ffi.structural_equal(a, b) for a, b in zip(body.indices, body.value.indices, strict=True)
        )
    )


def _is_dear(value: tirx.Expr) -> bool:
    """Whether an expression should be computed once and stored rather than once for each use."""
    nodes = 0
    calls = False

    def count(_: Any) -> None:
        nonlocal nodes
        nodes += 1

    def on_call(call: ir.Call) -> None:
        nonlocal calls
        calls |= not call.op.same_as(_IF_THEN_ELSE)
        count(call)

    tvm_ffi.structural_walk(value, ((ir.Call, on_call), (object, count)))
    return calls or nodes > _INLINE_NODES


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
