"""First operands of an iteration, loaded by the one before it: for cores that run in order.

A Cortex-A55 waits for the loads that an iteration of a register tile begins with, while nothing is
multiplied, and LLVM moves no load from one iteration into another. These loads become the last
thing that the iteration before does, into registers of their own: software pipelining (Lam, 1988).
Tiles of float32 have registers left for them; those of shorter numbers have more steps in an
iteration, and spill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.lowering.half_loads import is_load, loads_in_halves
from tvm_edge.schedules.accesses import constant, nodes_in, uses

__all__ = ["AheadLoads"]

_VECTOR = "float32x4"


@dataclass(frozen=True)
class _Operand:
    """A vector that the first step of an iteration loads.

    Attributes
    ----------
    load : Expr
        The vector.
    first : Expr
        Place of its first element, simplified.
    ahead : Buffer
        Where it waits for its iteration.
    """

    load: tirx.Expr
    first: tirx.Expr
    ahead: tirx.Buffer

    def of(self, values: Mapping[tirx.Var, tirx.Expr]) -> tirx.Stmt:
        """Return a statement that loads it where the loops have other values."""

        def value(var: tirx.Var) -> tirx.Expr:
            return values.get(var, var)

        load = tvm_ffi.structural_map(self.load, (tirx.Var, value))
        return tirx.BufferStore(self.ahead, load, [tirx.Ramp(0, 1, self.ahead.shape[0])])


@tvm.transform.module_pass(opt_level=0, name="AheadLoads")
class AheadLoads:
    """Load ahead of its iteration what accumulators of float32 begin with."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and loads_in_halves(func):
                updated.update_func(gvar, func.with_body(_pipelined(func.body)))
        return updated


def _pipelined(body: tirx.Stmt) -> tirx.Stmt:
    """Change the outermost loops of nests without anything between their loops."""
    loops = [loop for loop in nodes_in(body, tirx.For) if _is_serial(loop)]
    inside = {loop.body.loop_var for loop in loops if _is_serial(loop.body)}

    def change(loop: tirx.For) -> tirx.Stmt:
        if not _is_serial(loop) or loop.loop_var in inside:
            return loop
        nest = [loop]
        while _is_serial(nest[-1].body):
            nest.append(nest[-1].body)
        return _load_ahead(nest) or loop

    return tvm_ffi.structural_map(body, (tirx.For, change))


def _is_serial(stmt: tirx.Stmt) -> bool:
    known = isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL
    return known and constant(stmt.min) == 0 and constant(stmt.extent) is not None


def _load_ahead(nest: Sequence[tirx.For]) -> tirx.Stmt | None:
    """Return a nest that loads ahead; ``None`` where it has one iteration, or another content."""
    body = nest[-1].body
    stores = list(body.seq) if isinstance(body, tirx.SeqStmt) else []
    if prod(constant(loop.extent) or 0 for loop in nest) < 2 or not all(
        isinstance(store, tirx.BufferStore) and store.buffer.scope() == "local" for store in stores
    ):
        return None
    step = _first_step(stores)
    operands = _operands(step, [loop.loop_var for loop in nest]) if len(step) < len(stores) else []
    if not operands:
        return None

    def waiting(node: ir.Call) -> tirx.Expr:
        own = [each for each in operands if _same(node, each)]
        return own[0].ahead.vload([0], _VECTOR) if own else node

    multiplied = [tvm_ffi.structural_map(store, (ir.Call, waiting)) for store in stores]
    following = _next_iteration(nest)
    changed: tirx.Stmt = tirx.SeqStmt([*multiplied, *(each.of(following) for each in operands)])
    for loop in reversed(nest):
        changed = tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, changed, None, loop.annotations
        )
    begin = {loop.loop_var: loop.min for loop in nest}
    return tirx.SeqStmt(
        [
            *(tirx.AllocBuffer(each.ahead) for each in operands),
            *(each.of(begin) for each in operands),
            changed,
        ]
    )


def _first_step(stores: Sequence[tirx.BufferStore]) -> list[tirx.BufferStore]:
    """Return the stores before an accumulator has its second one."""
    step: list[tirx.BufferStore] = []
    for store in stores:
        own = (each for each in step if each.buffer.same_as(store.buffer))
        if any(tvm_ffi.structural_equal(each.indices, store.indices) for each in own):
            break
        step.append(store)
    return step


def _operands(step: Sequence[tirx.BufferStore], loops: Sequence[tirx.Var]) -> list[_Operand]:
    """Return the vectors that stores load in halves, from places that move with the loops."""
    found: list[_Operand] = []
    for call in (call for store in step for call in nodes_in(store.value, ir.Call)):
        if not _is_vector(call) or any(_same(call, known) for known in found):
            continue
        first = _first_element(call)
        if any(uses(first, var) for var in loops):
            ahead = tirx.decl_buffer([4], "float32", "ahead", scope="local")
            found.append(_Operand(call, first, ahead))
    return found


def _is_vector(node: tirx.Expr) -> bool:
    return is_load(node) and str(node.ty.dtype) == _VECTOR


def _first_element(load: ir.Call) -> tirx.Expr:
    """Return the place of a vector's first element in its array."""
    (element,) = nodes_in(load, ir.TensorLoad)
    (index,) = element.indices
    return sym.Analyzer().simplify(index)


def _same(load: ir.Call, operand: _Operand) -> bool:
    """Return whether a call loads an operand, however its place is written."""
    if not _is_vector(load):
        return False
    arrays = (nodes_in(each, ir.TensorLoad)[0].source for each in (load, operand.load))
    one, other = arrays
    return one.same_as(other) and tvm_ffi.structural_equal(_first_element(load), operand.first)


def _next_iteration(nest: Sequence[tirx.For]) -> dict[tirx.Var, tirx.Expr]:
    """Return the values of loops in the next iteration; the last one is followed by itself.

    So nothing is read that was not read before.
    """
    values: dict[tirx.Var, tirx.Expr] = {}
    turns: tirx.Expr | None = None  # whether all loops inside begin again
    for loop in reversed(nest):
        var = loop.loop_var
        last = var == loop.extent - 1
        more = var + 1 if turns is None else tirx.Select(turns, var + 1, var)
        if loop is nest[0]:
            values[var] = tirx.min(more, loop.extent - 1)
        else:
            turns = last if turns is None else tirx.And(turns, last)
            values[var] = tirx.Select(turns, loop.min, more)
    return values
