"""Members on ranges of work-items, as the paper launches them (EMDL'21, section 4.2).

For measuring what the branches of a wave cost: members that begin in the middle of a wave have it
run both. Launches of models are merged by work-groups, see
:mod:`tvm_edge.lowering.merge_launches`, which have no such waves and may have barriers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvm_edge.lowering.launches import Launch, digits, extent

__all__ = ["FLAT", "can_be_flat", "flat_launch"]

FLAT = "tvm_edge.flat"
"""Attribute of a composed kernel: its members have ranges of work-items, each rounded up to a
multiple of this; 1 does not round."""


def can_be_flat(launch: Launch) -> bool:
    """Return whether a launch's work-items have no barrier, shared memory or sub-group."""
    return not launch.arrays and launch.sub_group is None and not launch.has_barrier


def flat_launch(launches: Sequence[Launch], wave: int) -> tirx.Stmt:
    """One launch, in groups of the largest member's size.

    Parameters
    ----------
    launches : sequence of Launch
        For which :func:`can_be_flat` holds.
    wave : int
        What the ranges of work-items are rounded up to.
    """
    group, item = tirx.Var("blockIdx.x", "int32"), tirx.Var("threadIdx.x", "int32")
    size = max(launch.item_count for launch in launches)
    number = group * size + item
    counts = [launch.group_count * launch.item_count for launch in launches]
    ends = [sum(-(-count // wave) * wave for count in counts[: i + 1]) for i in range(len(counts))]
    body: tirx.Stmt = tirx.Evaluate(tirx.const(0, "int32"))
    for launch, count, end in reversed(list(zip(launches, counts, ends, strict=True))):
        own = number - (end - -(-count // wave) * wave)
        items = digits(tirx.truncmod(own, launch.item_count), launch.items)
        part = launch.at(tirx.truncdiv(own, launch.item_count), items)
        if count % wave:
            part = tirx.IfThenElse(own < count, part, None)
        body = tirx.IfThenElse(number < end, part, body)
    return extent(group, -(-ends[-1] // size), extent(item, size, body))
