"""Work-groups by rule: what each rule says, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tvm import te

from tvm_edge.hardware import DeviceSpec
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.schedules import workgroup
from tvm_edge.schedules.workgroup import (
    Problem,
    Read,
    WorkGroup,
    choose_work_group,
    load_steps,
    penalties,
    possible_work_groups,
    simultaneous_items,
)

SPECS = [preset.spec for preset in PRESETS.values()]
G76 = PRESETS["mali-g76"].spec  # 10 cores of 24 lanes, lines of 64 bytes, groups of up to 384


def penalty(rule: int, problem: Problem, group: WorkGroup) -> float:
    return penalties(problem, group, G76)[rule]


def test_rule_1_counts_idle_cores() -> None:
    problem = Problem((40, 10, 1))
    assert penalty(0, problem, WorkGroup(4, 10)) == 0  # 10 groups, 10 cores
    assert penalty(0, problem, WorkGroup(8, 10)) == pytest.approx(0.5)  # 5 groups
    assert penalty(0, problem, WorkGroup(8, 4)) == pytest.approx(0.25)  # 5 x 3 of 20


def test_rule_2_counts_idle_lanes() -> None:
    problem = Problem((96, 96, 96))
    assert penalty(1, problem, WorkGroup(24)) == 0
    assert penalty(1, problem, WorkGroup(8, 2)) == pytest.approx(1 / 3)
    assert penalty(1, problem, WorkGroup(4, 4, 2)) == pytest.approx(1 - 32 / 48)


def test_rule_3_counts_unused_bytes_of_lines() -> None:
    problem = Problem((96, 96, 96), vector=4)
    assert penalty(2, problem, WorkGroup(4)) == 0  # 4 items of 4 floats are a line of 64 bytes
    assert penalty(2, problem, WorkGroup(1)) == pytest.approx(0.75)
    assert penalty(2, problem, WorkGroup(6)) == pytest.approx(0.25)


def test_rule_4_counts_items_outside() -> None:
    problem = Problem((14, 7, 8))
    assert penalty(3, problem, WorkGroup(7, 7, 4)) == 0
    assert penalty(3, problem, WorkGroup(16, 8, 8)) == pytest.approx(1 - 14 * 7 / (16 * 8))


def test_rule_5_in_the_papers_forms() -> None:
    conv = Problem((96, 96, 96), "conv")
    assert penalty(4, conv, WorkGroup(4, 2, 4)) == 0  # equation 6: x y = 2 z
    assert penalty(4, conv, WorkGroup(4, 2, 16)) == pytest.approx(0.75)
    assert penalty(4, conv, WorkGroup(8, 8, 4)) == pytest.approx(7 / 8)
    depthwise = Problem((32, 32, 96), "depthwise")
    assert penalty(4, depthwise, WorkGroup(24, 16)) == 0  # equation 7: all that a group takes
    assert penalty(4, depthwise, WorkGroup(24, 8, 2)) == pytest.approx(0.5)


def matrix_reads() -> tuple[Read, ...]:
    """Those of ``c[y, x] = sum(a[y, k] * b[k, x])`` with 10 terms, an element an item."""
    y, x, k = (te.var(name) for name in "yxk")
    a, b = te.placeholder((64, 10)), te.placeholder((10, 64))
    return tuple(
        Read.of(load_steps(load, [y, x, k]), [64, 64, 10], {0: (1, 1), 1: (0, 1)})
        for load in (a[y, k], b[k, x])
    )


def test_reads_are_counted_off_the_indices() -> None:
    a, b = matrix_reads()
    assert (a.elements((8, 4, 1)), b.elements((8, 4, 1))) == (40, 80)
    y, k = te.var("y"), te.var("k")
    image = te.placeholder((64,))
    strided = Read.of(load_steps(image[y * 2 + k], [y, k]), [32, 3], {0: (0, 4)})
    # Groups of 5 items of 4 outputs with stride 2, and the window's other two elements.
    assert strided.elements((5, 1, 1)) == 5 * 4 * 2 + 2


def test_rule_5_in_general_prefers_squares() -> None:
    problem = Problem((64, 64, 1), reads=matrix_reads())
    square, flat = (penalty(4, problem, WorkGroup(*size)) for size in ((16, 16), (256, 1)))
    assert square == 0
    assert flat > 0.8


SIZES = st.integers(1, 300)
PROBLEMS = st.builds(
    Problem,
    st.tuples(SIZES, SIZES, st.integers(1, 1000)),
    st.sampled_from(["conv", "depthwise", "general"]),
    vector=st.sampled_from([1, 2, 4, 8]),
    registers=st.integers(8, 300),
    reads=st.just(matrix_reads()),
)


@given(PROBLEMS, st.sampled_from(SPECS))
def test_every_problem_gets_a_group_that_fits(problem: Problem, spec: DeviceSpec) -> None:
    chosen = choose_work_group(problem, spec)
    assert 1 <= chosen.items <= max(spec.max_work_group_size, 1)
    if spec.registers:
        assert chosen.items == 1 or chosen.items * problem.registers <= spec.registers
    assert all(0 <= found <= 1 for found in penalties(problem, chosen, spec))
    # No axis is padded to twice its length.
    assert all(w < 2 * n for n, w in zip(problem.space, chosen.sizes, strict=True))


@given(PROBLEMS)
@example(Problem((256, 147, 25), "depthwise", registers=8, reads=matrix_reads()))
def test_a_group_that_obeys_all_rules_is_taken_before_any_other(problem: Problem) -> None:
    """Of those that are looked at: in the example only 128×3, which is too large, obeys all."""
    spec = G76
    obeying = [
        group
        for group in possible_work_groups(problem, spec)
        if group.items <= workgroup._MOST_ITEMS and not any(penalties(problem, group, spec))
    ]
    if obeying:
        assert not any(penalties(problem, choose_work_group(problem, spec), spec))


@pytest.mark.parametrize("limit", [1, 2, 7, 0])
def test_absurd_limits_still_leave_a_group(limit: int) -> None:
    spec = replace(G76, max_work_group_size=limit, cores=0, alus=0, wave=0, cache_line=0)
    chosen = choose_work_group(Problem((13, 5, 3), "conv"), spec)
    assert 1 <= chosen.items <= max(limit, 1)


def test_all_sizes_are_candidates_that_divide_or_are_powers() -> None:
    problem = Problem((6, 5, 1))
    spec = replace(G76, max_work_group_size=16, registers=0)
    sizes = {group.sizes for group in possible_work_groups(problem, spec)}
    along = ((1, 2, 3, 4, 6, 8), (1, 2, 4, 5, 8), (1,))
    assert sizes == {size for size in product(*along) if prod(size) <= 16}


@pytest.mark.parametrize(
    ("name", "items"),
    [("mali-t860", 4), ("mali-g72", 12), ("jetson-orin-nano", 128), ("intel-hd505", 16)],
)
def test_items_at_the_same_time(name: str, items: int) -> None:
    assert simultaneous_items(PRESETS[name].spec) == items
