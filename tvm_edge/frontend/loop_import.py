"""A Loop whose number of steps only the run tells, as one step of it: :mod:`tvm_edge.ops.loops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.loops import loop_next, loop_state
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape

if TYPE_CHECKING:
    import onnx

__all__ = ["Branch", "alike", "as_declared", "convert_loop", "is_scalar_for"]

# A number of steps that says "until the condition is false".
_ENDLESS = 2**31

Branch = Callable[[Callable[[], relax.Expr]], relax.SeqExpr]
"""Collects the bindings that a callable emits as a branch of an If."""

Body = Callable[[Sequence[relax.Expr]], Sequence[relax.Expr]]
"""Converts a body: of the step's number, the condition and the state, the condition and results."""


@dataclass(frozen=True)
class _State:
    """A tensor that each step makes anew, and its value before the first one.

    Attributes
    ----------
    name : str
    initial : relax.Expr
    changing : frozenset of int
        Axes whose lengths are not the same after every step.
    any_rank : bool
        The steps do not even agree in the rank. None can read it, then: a variable of a program
        that has no value yet.
    """

    name: str
    initial: relax.Expr
    changing: frozenset[int] = frozenset()
    any_rank: bool = False

    @property
    def ndim(self) -> int | None:
        """The rank, where lengths change; -1 where it changes too, ``None`` where nothing does."""
        if self.any_rank:
            return -1
        return self.initial.ty.ndim if self.changing else None

    def declared(self) -> relax.Var:
        """Make the variable that stands for it; it is bound when the body is known."""
        ty = self.initial.ty
        if self.ndim is not None:
            ty = relax.TensorType(dtype=ty.dtype, ndim=self.ndim)
        return relax.Var(self.name, ty)

    def inside(self, bb: relax.BlockBuilder, var: relax.Var) -> relax.Var:
        """Name the lengths that are not the same in every step."""
        if self.any_rank or not self.changing:
            return var
        shape = [
            tirx.Var(f"length{axis}", "int64") if axis in self.changing else length
            for axis, length in enumerate(self.initial.ty.shape.values)
        ]
        return bb.match_cast(var, relax.TensorType(shape, var.ty.dtype))

    def after(self, value: relax.Expr) -> _State:
        """Return the state of which a step's `value` is one, too."""
        old, new = self.initial.ty, value.ty
        if old.dtype != new.dtype:
            raise ValueError(f"a step makes {new.dtype} of a tensor of {old.dtype}")
        if self.any_rank or old.ndim != new.ndim:
            return replace(self, any_rank=True)
        if not isinstance(new.shape, relax.ShapeExpr):
            return replace(self, changing=frozenset(range(old.ndim)))
        lengths = zip(old.shape.values, new.shape.values, strict=True)
        changed = {i for i, (before, made) in enumerate(lengths) if not _equal(before, made)}
        return replace(self, changing=self.changing | changed)


def convert_loop(
    bb: relax.BlockBuilder,
    branch: Branch,
    body: Body,
    inputs: Sequence[relax.Expr | None],
    anything: relax.Expr,
    first: int,
) -> tuple[relax.If, list[relax.Type]]:
    """Convert a Loop to an If that stands for it.

    Parameters
    ----------
    bb : relax.BlockBuilder
    branch, body : callable
    inputs : sequence of relax.Expr or None
        The number of steps, the condition, and the state, as the standard has them.
    anything : relax.Expr
        A tensor of the graph.
    first : int
        The number of the loop's first state.

    Returns
    -------
    relax.If
        Results in a tuple: whether it goes on and the steps done, then what the Loop results in.
    list of relax.Type
        Of the results after at least one step; the run ends where a rank is another.

    Raises
    ------
    NotImplementedError
        A state is left out, or nothing tells the shape of collected rows.
    """
    most, running, *given = inputs
    limit = None if most is None else bb.emit(relax.op.reshape(most, ()))
    known = None if most is None else constant_of(most)
    if known is not None and int(known.reshape(-1)[0]) >= _ENDLESS:
        limit = None
    goes_on = (
        relax.const(True, "bool") if running is None else bb.emit(relax.op.reshape(running, ()))
    )
    step = relax.const(0, "int64")
    if limit is not None:
        below = bb.emit(relax.op.less(step, limit))
        goes_on = bb.emit(relax.op.logical_and(below, goes_on))
    states = [_State("goes_on", goes_on), _State("step", step)]
    states += [_State(f"state{i}", value) for i, value in enumerate(given) if value is not None]
    if len(states) != 2 + len(given):
        raise NotImplementedError("a loop with a state that is left out")
    rows: list[_State] = []
    while True:
        every = [*states, *rows]
        formal = [state.declared() for state in every]
        made: list[relax.Expr] = []

        def one_step(
            every: list[_State] = every, formal: list[relax.Var] = formal, made: list = made
        ) -> relax.Expr:
            made += _step(bb, body, limit, every, formal, len(given))
            bound = [bb.emit(loop_next(*pair)) for pair in zip(formal, made, strict=False)]
            return relax.Tuple(bound)

        taken = branch(one_step)
        if len(made) > len(every):  # rows to collect, whose shape is known now
            rows = [_collected(i, row) for i, row in enumerate(made[len(every) :])]
            continue
        found = [
            replace(state, initial=alike(bb, state.initial, value.ty)).after(value)
            for state, value in zip(every, made, strict=True)
        ]
        if found == every:
            break
        states, rows = found[: len(states)], found[len(states) :]
    carrier = limit if isinstance(limit, relax.Var) else anything
    for number, (state, var) in enumerate(zip(every, formal, strict=True), first):
        value = loop_state(state.initial, carrier, number, state.ndim)
        bb.emit_normalized(relax.VarBinding(var, bb.normalize(value)))
    ended = branch(lambda: relax.Tuple(formal))
    return relax.If(formal[0], taken, ended), [value.ty for value in made]


def is_scalar_for(ty: relax.Type, other: relax.Type) -> bool:
    """Return whether this is a scalar where another step or branch has a vector of one element."""
    return ty.ndim == 0 and static_shape(other) == (1,)


def alike(bb: relax.BlockBuilder, value: relax.Expr, other: relax.Type) -> relax.Expr:
    """Make such a scalar a vector; programs of Paddle do not tell them apart."""
    return bb.emit(relax.op.reshape(value, (1,))) if is_scalar_for(value.ty, other) else value


def as_declared(
    bb: relax.BlockBuilder, row: relax.Expr, declared: onnx.ValueInfoProto
) -> relax.Expr:
    """Take the shape that the file says for one that only the run tells; the run checks it."""
    shape = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
    if static_shape(row.ty) is not None or row.ty.ndim != len(shape) or 0 in shape:
        return row
    return bb.match_cast(row, relax.TensorType(shape, str(row.ty.dtype)))


def _step(
    bb: relax.BlockBuilder,
    body: Body,
    limit: relax.Expr | None,
    every: Sequence[_State],
    formal: Sequence[relax.Var],
    carried: int,
) -> list[relax.Expr]:
    """Convert one step; return the next states, and rows that there is no state for yet."""
    goes_on, step, *state = (each.inside(bb, var) for each, var in zip(every, formal, strict=True))
    condition, *results = body([step, goes_on, *state[:carried]])
    following = bb.emit(relax.op.add(step, relax.const(1, "int64")))
    condition = bb.emit(relax.op.reshape(condition, ()))
    if limit is not None:
        below = bb.emit(relax.op.less(following, limit))
        condition = bb.emit(relax.op.logical_and(below, condition))
    types = [each.initial.ty for each in every[2 : 2 + carried]]
    following_state = [alike(bb, *pair) for pair in zip(results, types, strict=False)]
    made = [condition, following, *following_state]
    collected = state[carried:]
    if not collected:
        return made + results[carried:]
    for before, row in zip(collected, results[carried:], strict=True):
        wide = bb.emit(relax.op.expand_dims(row, 0))
        made.append(bb.emit(relax.op.concat([before, wide], axis=0)))
    return made


def _collected(number: int, row: relax.Expr) -> _State:
    """Make the state that rows are collected in: none of them, at first."""
    shape = row.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(
        isinstance(length, tirx.IntImm) for length in shape.values
    ):
        raise NotImplementedError("rows of a loop's result of a shape that only the run tells")
    lengths = [int(length) for length in shape.values]
    empty = relax.const(np.zeros((0, *lengths), str(row.ty.dtype)))
    return _State(f"rows{number}", empty, frozenset([0]))


def _equal(before: tirx.Expr, after: tirx.Expr) -> bool:
    if isinstance(before, tirx.IntImm) and isinstance(after, tirx.IntImm):
        return int(before) == int(after)
    return bool(before.same_as(after))
