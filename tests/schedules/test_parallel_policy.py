"""Which kernels become one: no device is needed, times are predictions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_edge.hardware import resolve_target
from tvm_edge.hardware.presets import GENERIC_CUDA, GENERIC_OPENCL, PRESETS
from tvm_edge.schedules.launch_work import Launch
from tvm_edge.schedules.parallel_policy import (
    LEAST_GAIN,
    MOST_MEMBERS,
    Group,
    Problem,
    choose_groups,
    fuses_by_itself,
)

ORIN = PRESETS["jetson-orin-nano"].spec  # 8 cores

# A fourth of the cores for a while; all of them, many times over.
SMALL = (Launch(2, 128, 1e5, 64.0, 8, 40, 8192, 1e4),)
LARGE = (Launch(4096, 256, 4e6, 256.0, 32, 64, 16384, 4e6),)


def problem(
    before: Sequence[Sequence[int]],
    launches: Sequence[Sequence[Launch] | None] | None = None,
    kinds: Sequence[int | None] | None = None,
    refused: Callable[[tuple[int, ...]], str] = lambda _: "",
    measured: Callable[[tuple[int, ...]], bool | None] = lambda _: None,
) -> Problem:
    known = [SMALL for _ in before] if launches is None else launches
    return Problem(
        [frozenset(each) for each in before],
        known.__getitem__,
        ORIN,
        [0 for _ in before] if kinds is None else kinds,
        refused,
        measured,
    )


def taken(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    return [group.members for group in groups if group.taken]


def test_kernels_that_leave_cores_empty_are_merged() -> None:
    (group,) = choose_groups(problem([[], []]))
    assert group.taken and group.members == (0, 1)
    assert group.apart_us is not None and group.merged_us is not None
    assert group.merged_us < (1 - LEAST_GAIN) * group.apart_us


def test_kernels_that_fill_the_device_are_not() -> None:
    (group,) = choose_groups(problem([[], []], [LARGE, LARGE]))
    assert not group.taken and group.members == (0, 1)
    assert "would be worth it" in group.reason


def test_one_that_takes_all_registers_is_kept_from_one_that_needs_few() -> None:
    """A member's groups have the registers of the other one's, so that fewer run together."""
    light = (Launch(100, 64, 1e3, 20.0, 1, 20),)
    heavy = (Launch(8, 256, 1e5, 8.0, 4, 250, 40000),)
    assert taken(choose_groups(problem([[], []], [light, light])))
    assert not taken(choose_groups(problem([[], []], [light, heavy])))


def test_what_follows_each_other_is_not_merged() -> None:
    for every in (False, True):
        assert choose_groups(problem([[], [0], [1], [0, 2]]), every=every) == []


def test_two_networks_are_merged_level_by_level() -> None:
    """Not the first kernel of one with the last of the other, which would keep all others apart."""
    length = 12
    before = [[i - 1] if i % length else [] for i in range(2 * length)]
    expected = [(i, i + length) for i in range(length)]
    assert taken(choose_groups(problem(before))) == expected
    assert taken(choose_groups(problem(before), every=True)) == expected


def test_a_better_pair_far_apart_waits() -> None:
    """Merged first, the first of one chain and the last of another keep all others apart."""
    slow = (replace(SMALL[0], steps=10),)
    before = [[], [0], [1], [2], [], [4], [5], [6]]
    launches = [slow, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, slow]
    groups = taken(choose_groups(problem(before, launches)))
    assert groups == [(0, 4), (1, 5), (2, 6), (7, 3)]  # the slow one first


def test_branches_of_an_inception_block() -> None:
    """1x1; 1x1, 3x3; 1x1, 5x5; pool, 1x1: two launches."""
    before = [[], [], [], [], [1], [2], [3]]
    groups = taken(choose_groups(problem(before)))
    assert len(groups) == 2
    assert {4, 5, 6} <= set(groups[1])


def test_a_group_has_a_limit() -> None:
    groups = taken(choose_groups(problem([[] for _ in range(3 * MOST_MEMBERS)])))
    assert sorted(member for group in groups for member in group) == list(range(3 * MOST_MEMBERS))
    assert {len(group) for group in groups} == {MOST_MEMBERS}


def test_kinds_are_not_mixed() -> None:
    kinds = [0, 1, 0, 1, None, None]
    assert taken(choose_groups(problem([[]] * 6, kinds=kinds), every=True)) == [(0, 2), (1, 3)]


def test_what_depends_on_data_is_merged_on_request_alone() -> None:
    search = problem([[], []], [SMALL, None])
    (group,) = choose_groups(search)
    assert not group.taken and "depends on data" in group.reason
    assert group.apart_us is None
    assert taken(choose_groups(search, every=True)) == [(0, 1)]


def test_why_kernels_cannot_be_merged_is_said() -> None:
    def refused(members: tuple[int, ...]) -> str:
        return "too many tensors" if len(members) > 2 else ""

    for every in (False, True):
        groups = choose_groups(problem([[]] * 4, refused=refused), every=every)
        assert taken(groups) == [(0, 1), (2, 3)]
        (other,) = (group for group in groups if not group.taken)
        assert other.members == (0, 1, 2, 3) and other.reason == "too many tensors"


def test_a_measurement_goes_before_a_prediction() -> None:
    (group,) = choose_groups(problem([[], []], measured=lambda _: False))
    assert not group.taken and "measured" in group.reason
    full = problem([[], []], [LARGE, LARGE], measured=lambda _: True)
    (group,) = choose_groups(full)
    assert group.taken and "measured" in group.reason
    # Who asks for every group gets it.
    asked = choose_groups(problem([[], []], measured=lambda _: False), every=True)
    assert taken(asked) == [(0, 1)]


def test_nothing_at_all() -> None:
    assert choose_groups(problem([])) == []
    assert choose_groups(problem([[]]), every=True) == []


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(2, 24))
    rng = random.Random(draw(st.integers(0, 2**32)))
    often = draw(st.sampled_from([0.02, 0.1, 0.3]))
    return [[j for j in range(i) if rng.random() < often] for i in range(count)]


def behind(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each kernel all that it waits for."""
    found: list[set[int]] = []
    for own in before:
        found.append(set(own).union(*(found[other] for other in own)))
    return found


@given(graphs(), st.booleans(), st.integers(0, 2**32))
def test_groups_of_any_graph_can_run(before: list[list[int]], every: bool, seed: int) -> None:
    rng = random.Random(seed)
    launches = [rng.choice((SMALL, SMALL, LARGE, None)) for _ in before]
    groups = choose_groups(problem(before, launches), every=every)
    assert groups == choose_groups(problem(before, launches), every=every)
    merged = taken(groups)
    members = [member for group in merged for member in group]
    assert len(set(members)) == len(members)
    above = behind(before)
    for group in merged:
        assert 2 <= len(group) <= MOST_MEMBERS
        assert group == problem(before, launches).ordered(tuple(sorted(group)))
        assert not any(a in above[b] for a in group for b in group)
    leader = {member: group[0] for group in merged for member in group}
    contracted: dict[int, set[int]] = {}
    for kernel, own in enumerate(before):
        node = leader.get(kernel, kernel)
        contracted.setdefault(node, set()).update(leader.get(other, other) for other in own)
    assert len(list(TopologicalSorter(contracted).static_order())) == len(contracted)
    if not every:
        for group in groups:
            known = all(launches[member] is not None for member in group.members)
            assert (group.apart_us is not None) == known
            if group.taken:
                assert group.apart_us is not None and group.merged_us is not None
                assert group.merged_us < group.apart_us


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_known_gpus_fuse_by_themselves(name: str) -> None:
    assert fuses_by_itself(PRESETS[name].spec)


def test_others_do_not() -> None:
    assert fuses_by_itself(GENERIC_CUDA)
    assert not fuses_by_itself(GENERIC_OPENCL)  # nobody knows how much of it is empty
    assert not fuses_by_itself(replace(ORIN, on_cpu=True))
    assert not fuses_by_itself(resolve_target("llvm").spec)
