"""The stages of a composed kernel: which launches of its members run together, and in what order.

A member's launches follow each other; those of different members may run in any order. Stage by
stage, what there is of each member is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import tvm_ffi
from tvm import ir, tirx

from tvm_edge.lowering.parallel_members import MEMBER, PARALLEL
from tvm_edge.schedules.accesses import uses
from tvm_edge.schedules.grid import sequence

__all__ = ["MERGED", "Joined", "merge_stages"]

MERGED = "tvm_edge.merged"
"""Attribute of a lowered composed kernel: for each of its launches, or parallel loops, the members
that run in it."""

Joined = tuple[list[int], tirx.Stmt]
"""Members, and the statement in which they run."""

_Part = TypeVar("_Part")

# Around the statements of kernels that were written with `schedules.emit`.
_TRANSPARENT = ("kernel",)


def merge_stages(
    func: tirx.PrimFunc,
    take_apart: Callable[[tirx.Stmt], _Part | None],
    merge: Callable[[Mapping[int, _Part]], list[Joined]],
) -> tirx.PrimFunc:
    """A composed kernel whose launches are merged stage by stage.

    Parameters
    ----------
    func : PrimFunc
        Composed, and lowered so far that its body is made of statements and not of blocks.
    take_apart : callable
        What there is to know of a statement that may be merged with others; ``None`` of all
        others, which are left where they are.
    merge : callable
        What there is in a stage, by member, as one statement or as several.

    Returns
    -------
    PrimFunc
        With the attribute :data:`MERGED`; `func` itself if its members share memory that TVM
        allocated, so that none may begin before another one's end.
    """
    found = _members(func)
    if found is None:
        return func
    body, members = found
    lines = [
        _numbered([(take_apart(stmt), stmt) for stmt in stmts], own)
        for stmts, own in zip(members, func.attrs[PARALLEL], strict=True)
    ]
    joined: list[list[int]] = []
    for stage in sorted({stage for line in lines for stage, _, _ in line if stage is not None}):
        together: dict[int, _Part] = {}
        for number, line in enumerate(lines):
            while line and line[0][0] is None:
                body.append(line.pop(0)[2])
            if line and line[0][0] == stage and (part := line.pop(0)[1]) is not None:
                together[number] = part
        for numbers, stmt in merge(together):
            joined.append(numbers)
            body.append(stmt)
    body += [stmt for line in lines for _, _, stmt in line]
    made = func.with_body(sequence(body)).without_attr(PARALLEL)
    return made.with_attr(MERGED, joined)


def _numbered(
    stmts: Sequence[tuple[_Part | None, tirx.Stmt]], given: Sequence[int]
) -> list[tuple[int | None, _Part | None, tirx.Stmt]]:
    """Statements and, of launches, their stages."""
    wanted = [int(stage) for stage in given]
    stage = -1
    line: list[tuple[int | None, _Part | None, tirx.Stmt]] = []
    for part, stmt in stmts:
        if part is not None:
            stage = wanted.pop(0) if wanted else stage + 1
        line.append((None if part is None else stage, part, stmt))
    return line


def _members(func: tirx.PrimFunc) -> tuple[list[tirx.Stmt], list[list[tirx.Stmt]]] | None:
    """What stands in front of the members, and the statements of each; ``None`` if they share."""
    before: list[tirx.Stmt] = []
    members: dict[int, list[tirx.Stmt]] = {}
    for stmt in _flat(func.body):
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == MEMBER:
            members[int(stmt.value)] = _flat(stmt.body)
        elif not members or _is_declaration(stmt):
            before.append(stmt)
        else:
            return None
    if sorted(members) != list(range(len(func.attrs[PARALLEL]))):
        return None
    ordered = [members[number] for number in range(len(members))]
    return None if _share(before, ordered) else (before, ordered)


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    if isinstance(stmt, tirx.SeqStmt):
        return [part for one in stmt.seq for part in _flat(one)]
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key in _TRANSPARENT:
        return _flat(stmt.body)
    return [stmt]


def _is_declaration(stmt: tirx.Stmt) -> bool:
    """Whether a statement may stand anywhere in front of what uses it."""
    if not isinstance(stmt, tirx.Bind):
        return isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)
    found = False

    def load(_: ir.TensorLoad) -> None:
        nonlocal found
        found = True

    tvm_ffi.structural_walk(stmt.value, (ir.TensorLoad, load))
    return not found


def _share(before: Sequence[tirx.Stmt], members: Sequence[Sequence[tirx.Stmt]]) -> bool:
    """Whether two members use an array that the function allocates.

    They were composed with arrays of their own: TVM gave the room of one to another that began
    after its end.
    """
    families: list[list[tirx.Buffer]] = []  # an array, and all names that it has
    for stmt in (*before, *(stmt for stmts in members for stmt in stmts)):
        if isinstance(stmt, tirx.AllocBuffer):
            families.append([stmt.buffer])
        elif isinstance(stmt, tirx.DeclBuffer):
            for family in families:
                if any(uses(stmt.data, name) for name in family):
                    family.append(stmt.buffer)
    return any(
        sum(any(uses(stmt, name) for stmt in stmts for name in family) for stmts in members) > 1
        for family in families
    )
