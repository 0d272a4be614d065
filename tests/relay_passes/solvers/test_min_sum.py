"""Sums of tables: the exact minimum, and how near the search comes where none is affordable."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_edge.relay_passes.solvers import min_sum
from tvm_edge.relay_passes.solvers.min_sum import Table, minimise


def made(
    seed: int, count: int, tables: int, *, infinite: float = 0.1
) -> tuple[list[int], list[Table]]:
    """Random tables of up to three variables."""
    random = np.random.default_rng(seed)
    sizes = [int(size) for size in random.integers(1, 4, count)]
    found = []
    for _ in range(tables):
        own = random.permutation(count)[: random.integers(0, min(3, count) + 1)]
        values = random.random([sizes[v] for v in own])
        values[random.random(values.shape) < infinite] = np.inf
        found.append(Table(tuple(int(v) for v in own), values))
    return sizes, found


def total(tables: list[Table], choice: tuple[int, ...]) -> float:
    return float(sum(t.values[tuple(choice[v] for v in t.scope)] for t in tables))


def least(sizes: list[int], tables: list[Table]) -> float:
    return min(total(tables, choice) for choice in product(*map(range, sizes)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 7), tables=st.integers(0, 12))
def test_the_minimum_is_that_of_all_choices(seed: int, count: int, tables: int) -> None:
    sizes, given_tables = made(seed, count, tables)
    expected = least(sizes, given_tables)
    if expected == np.inf:
        with pytest.raises(ValueError, match="infinite"):
            minimise(sizes, given_tables)
        return
    found = minimise(sizes, given_tables)
    assert found.cost == found.bound == pytest.approx(expected)
    assert found.gap == 0
    assert total(given_tables, found.choice) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), largest=st.sampled_from([4, 9, 20]))
def test_of_tables_that_are_too_large_the_bound_holds(seed: int, largest: int) -> None:
    sizes, tables = made(seed, 7, 14, infinite=0)
    expected = least(sizes, tables)
    found = minimise(sizes, tables, start=[0] * len(sizes), largest=largest)
    assert found.bound <= expected * (1 + 1e-9)
    assert expected * (1 - 1e-9) <= found.cost <= total(tables, (0,) * len(sizes))
    assert found.gap == pytest.approx(1 - found.bound / found.cost)


def test_a_wide_problem_improves_on_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 24 variables meet: a table of 3**24 entries would be needed."""
    random = np.random.default_rng(0)
    sizes = [3] * 24
    tables = [Table(pair, random.random((3, 3))) for pair in combinations(range(24), 2)]
    start = [0] * 24
    found = minimise(sizes, tables, start=start, largest=3**7)
    assert 0 < found.bound < found.cost < total(tables, tuple(start))
    assert found == minimise(sizes, tables, start=start, largest=3**7), "the same every time"
    monkeypatch.setattr(min_sum, "_ROUNDS", 0)
    unsearched = minimise(sizes, tables, start=start, largest=3**7)
    assert found.cost < unsearched.cost and found.bound == unsearched.bound


def test_a_start_is_needed_where_the_search_finds_none() -> None:
    """Any two differ: of three values, in a graph that needs four."""
    different = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    tables = [Table(pair, different) for pair in combinations(range(4), 2)]
    with pytest.raises(ValueError, match="every choice has an infinite cost"):
        minimise([3] * 4, tables)
    with pytest.raises(ValueError, match="give one to start with"):
        minimise([3] * 4, tables, largest=8)


def test_nothing_to_choose() -> None:
    assert minimise([], []).choice == ()
    assert minimise([2, 3], []).cost == 0
    assert minimise([2], [Table((), np.array(2.5))]).cost == 2.5
