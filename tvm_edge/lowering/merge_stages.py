"""The stages of a composed kernel: which launches of its members run together, and in what order.

A member's launches follow each other; those of different members may run in any order. Stage by
stage, what there is of each member is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tvm import tirx

from tvm_edge.lowering.parallel_members import PARALLEL
from tvm_edge.schedules.grid import sequence

__all__ = ["MERGED", "Joined", "merge_stages"]

MERGED = "tvm_edge.merged"
"""Attribute of a lowered composed kernel: for each of its launches, or parallel loops, the members
that run in it."""

Joined = tuple[list[int], tirx.Stmt]
"""Members, and the statement in which they run."""

_Part = TypeVar("_Part")


def merge_stages(
    func: tirx.PrimFunc,
    members: Sequence[Sequence[tirx.Stmt]],
    take_apart: Callable[[tirx.Stmt], _Part | None],
    merge: Callable[[int, Mapping[int, _Part]], list[Joined]],
) -> tirx.PrimFunc:
    """A composed kernel whose launches are merged stage by stage.

    Parameters
    ----------
    func : PrimFunc
        Composed.
    members : sequence of sequence of Stmt
        What each member does, lowered so far that it is made of statements and not of blocks.
    take_apart : callable
        What there is to know of a statement that may be merged with others; ``None`` of all
        others, which are left where they are.
    merge : callable
        What there is in a stage, by member, as one statement or as several, given its number, too.

    Returns
    -------
    PrimFunc
        With the attribute :data:`MERGED`.
    """
    body: list[tirx.Stmt] = []
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
        for numbers, stmt in merge(stage, together):
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
