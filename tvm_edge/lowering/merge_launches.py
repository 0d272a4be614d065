"""The launches of a composed kernel's members as one: ParallelFusion (EMDL'21, section 4.2).

Each member has a range of the merged launch's work-groups. The paper gives each a range of
work-items, rounded up to the device's wave, so that no wave has to run two branches. No wave has
work-items of two groups: by groups there is nothing to round, and all that run a branch meet at its
barriers. A group finds its member, and its place in the member's own grid, by its number.

Groups are as large as the largest member's whose work-items meet or share memory: the work-items
after a smaller one's own only meet the others at barriers (:mod:`tvm_edge.lowering.idle_items`).
Where they do neither, their number alone says what they do, and a member's are dealt anew to groups
of that size: beside a tile of 64, a depthwise convolution in groups of 256 would leave the tile's
groups with 192 idle work-items each, whose registers nobody else could have.

A member with hundreds of short groups beside one with a few long ones has fewer groups in the
launch, each of which does several (:mod:`tvm_edge.schedules.group_loops`).

Members use the same local memory (:mod:`tvm_edge.lowering.local_arrays`).

Runs when work-items meet where they have to: before ``ThreadSync`` no kernel with barriers could be
put into a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import tvm
from tvm import tirx

from tvm_edge.lowering.flat_launches import FLAT, can_be_flat, flat_launch
from tvm_edge.lowering.idle_items import only_where
from tvm_edge.lowering.launches import Launch, digits, extent, take_apart
from tvm_edge.lowering.local_arrays import common_bytes, in_common
from tvm_edge.lowering.merge_stages import Joined, merge_stages
from tvm_edge.lowering.outline_members import with_members
from tvm_edge.lowering.parallel_members import MOST_ARGUMENTS
from tvm_edge.schedules.gpu.subgroup_calls import PIN
from tvm_edge.schedules.grid import sequence
from tvm_edge.schedules.group_loops import group_loops

__all__ = ["SPREAD", "MergeLaunches"]

SPREAD = "tvm_edge.spread"
"""Attribute of a composed kernel: for each stage the cores that its launch's groups are to be
spread over evenly, 0 where that is of no use. See :mod:`tvm_edge.schedules.group_loops`."""

_MOST_GROUPS = 2**31 - 1


@tvm.transform.module_pass(opt_level=0, name="MergeLaunches")
class MergeLaunches:
    """Merge the launches of composed kernels, stage by stage.

    Launches that would exceed the target's limits together, or that no merged launch can be made
    of, stay as they are.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return with_members(mod, _merged_kernel)


def _merged_kernel(func: tirx.PrimFunc, members: Sequence[Sequence[tirx.Stmt]]) -> tirx.PrimFunc:
    local = func.attrs["target"].attrs.get("max_shared_memory_per_block", 0)
    cores = [int(count) for count in func.attrs.get(SPREAD, [])]
    merge = partial(
        _merged, local=int(local) or None, wave=int(func.attrs.get(FLAT, 0)), spread=cores
    )
    return merge_stages(func, members, take_apart, merge).without_attr(SPREAD)


def _merged(
    stage: int,
    launches: Mapping[int, Launch],
    local: int | None,
    wave: int,
    spread: Sequence[int],
) -> list[Joined]:
    """The launches of a stage: each goes with the first others that it fits to.

    Parameters
    ----------
    wave : int
        Not 0: by work-items where that is possible, in ranges rounded up to it.
    spread : sequence of int
        Of :data:`SPREAD`.
    """
    cores = spread[stage] if stage < len(spread) else 0
    if wave and all(map(can_be_flat, launches.values())):
        return [(list(launches), flat_launch(list(launches.values()), wave))]
    groups: list[dict[int, Launch]] = []
    for number, launch in launches.items():
        for group in groups:
            if _fit([*group.values(), launch], local):
                group[number] = launch
                break
        else:
            groups.append({number: launch})
    return [(list(group), _one(list(group.values()), cores)) for group in groups]


def _fit(launches: Sequence[Launch], local: int | None) -> bool:
    """Return whether launches may be one.

    Parameters
    ----------
    local : int or None
        Bytes of local memory that a group may use.
    """
    size = _group_size(launches)
    bound = [launch for launch in launches if not _can_be_dealt(launch)]
    sub_groups = {launch.sub_group for launch in launches if launch.sub_group is not None}
    return (
        all(launch.can_idle for launch in bound if launch.item_count < size)
        and len(sub_groups) <= 1
        and all(launch.item_count % width == 0 for launch in launches for width in sub_groups)
        and sum(launch.arguments for launch in launches) <= MOST_ARGUMENTS
        and sum(_group_count(launch, size) for launch in launches) <= _MOST_GROUPS
        and (local is None or common_bytes([launch.arrays for launch in launches]) <= local)
    )


def _can_be_dealt(launch: Launch) -> bool:
    """Return whether a launch's work-items may be in groups of another size.

    One whose groups are loops of a single work-item keeps them: they are for cores, not for lanes.
    """
    return launch.item_count > 1 and can_be_flat(launch)


def _group_size(launches: Sequence[Launch]) -> int:
    """Work-items of a merged launch's groups."""
    bound = [launch for launch in launches if not _can_be_dealt(launch)]
    return max(launch.item_count for launch in bound or launches)


def _group_count(launch: Launch, size: int) -> int:
    """The groups that a member has in a launch of groups of `size`."""
    if launch.item_count == size or not _can_be_dealt(launch):
        return launch.group_count
    return -(-launch.group_count * launch.item_count // size)


def _one(launches: Sequence[Launch], cores: int) -> tirx.Stmt:
    """The merged launch, spread over `cores` evenly if that is not 0."""
    if len(launches) == 1:
        return launches[0].stmt
    array, bodies = in_common([(launch.arrays, launch.body) for launch in launches])
    group = tirx.Var("blockIdx.x", "int32")
    axes = [tirx.Var(f"threadIdx.{axis}", "int32") for axis in "xyz"]
    shapes = {launch.items for launch in launches}
    # Of the same shape, work-items stay where they are; of several, they go by their number.
    size = _group_size(launches)
    sizes = launches[0].items if len(shapes) == 1 else (size, 1, 1)
    counts = [_group_count(launch, size) for launch in launches]
    # Members that did not fit together are launches of their own: these may be few or too many.
    loops = (group_loops(counts, cores) if cores else None) or [1] * len(counts)
    given = [-(-count // loop) for count, loop in zip(counts, loops, strict=True)]
    ends = [sum(given[: i + 1]) for i in range(len(launches))]
    # From the last member to the first: what is left where it is none of those before.
    chosen: tirx.Stmt | None = None
    for launch, body, count, own_groups, end in reversed(
        list(zip(launches, bodies, counts, given, ends, strict=True))
    ):
        first = end - own_groups
        place = group - first if first else group
        turn = tirx.Var("turn", "int32")
        if own_groups < count:
            place = place + turn * own_groups
        member = replace(launch, body=body)
        if launch.item_count != size and _can_be_dealt(launch):
            own = _dealt(member, place * size + axes[0], count * size)
        else:
            own = member.at(place, _items(axes, launch, by_number=len(shapes) > 1))
            if launch.item_count < size:
                own = only_where(axes[0] < launch.item_count, own)
        if own_groups < count:
            own = _in_turn(own, turn, place, count, own_groups, launch)
        chosen = own if chosen is None else tirx.IfThenElse(group < end, own, chosen)
    assert chosen is not None, "there are launches"
    pins = {launch.sub_group for launch in launches if launch.sub_group is not None}
    marks = [tirx.Evaluate(tirx.call_extern("int32", PIN, width)) for width in pins]
    made = sequence([*marks, chosen])
    if any(launch.has_items for launch in launches):
        for axis, length in reversed(list(zip(axes, sizes, strict=True))):
            if length > 1 or axis is axes[0]:
                made = extent(axis, length, made)
    return extent(group, ends[-1], made if array is None else tirx.SeqStmt([array, made]))


def _in_turn(
    stmt: tirx.Stmt, turn: tirx.Var, place: tirx.Expr, count: int, given: int, launch: Launch
) -> tirx.Stmt:
    """Run a member in a group that has `given` instead of `count`, one after the other."""
    turns = -(-count // given)
    if launch.arrays:  # which the next one writes to
        meet = tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")
        stmt = tirx.SeqStmt([stmt, tirx.Evaluate(meet)])
    if count % given:
        stmt = tirx.IfThenElse(place < count, stmt, None)
    zero = tirx.const(0, "int32")
    return tirx.For(turn, zero, tirx.const(turns, "int32"), tirx.ForKind.SERIAL, stmt)


def _dealt(launch: Launch, number: tirx.Expr, given: int) -> tirx.Stmt:
    """Run the `number`-th of a member's work-items; `given` are there, or a few too many."""
    count = launch.group_count * launch.item_count
    items = digits(tirx.truncmod(number, launch.item_count), launch.items)
    own = launch.at(tirx.truncdiv(number, launch.item_count), items)
    return own if count == given else tirx.IfThenElse(number < count, own, None)


def _items(axes: Sequence[tirx.Var], launch: Launch, *, by_number: bool) -> list[tirx.Expr]:
    """A work-item's indices in a member's own groups."""
    if by_number:
        return digits(axes[0], launch.items)
    zero = tirx.const(0, "int32")
    return [axis if size > 1 else zero for axis, size in zip(axes, launch.items, strict=True)]
