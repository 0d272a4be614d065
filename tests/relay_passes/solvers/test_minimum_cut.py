"""A cut finds the cheapest placement: that of all, by enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_edge.relay_passes.place.label_operators import CPU, GPU
from tvm_edge.relay_passes.solvers.minimum_cut import (
    PlacementProblem,
    Seam,
    Transfer,
    place_by_cost,
)

MICROSECONDS = st.integers(0, 50).map(float)


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    """Up to eight operators in the order of a graph; the first is the host."""
    count = draw(st.integers(2, 8))
    operators = range(count)
    transfers = []
    for producer in operators[:-1]:
        readers = draw(st.sets(st.sampled_from(operators[producer + 1 :]), max_size=3))
        if readers:
            ways = (draw(MICROSECONDS), draw(MICROSECONDS))
            transfers.append(Transfer(producer, tuple(sorted(readers)), ways))
    pairs = [(t.producer, reader) for t in transfers for reader in t.readers]
    seams = [
        Seam(*pair, (draw(MICROSECONDS), draw(MICROSECONDS)))
        for pair in pairs
        if draw(st.booleans())
    ]
    fixed = {0: CPU} | draw(
        st.dictionaries(st.sampled_from(operators[1:]), st.sampled_from((GPU, CPU)), max_size=2)
    )
    return PlacementProblem(
        [(draw(MICROSECONDS), draw(MICROSECONDS)) for _ in operators], fixed, transfers, seams
    )


@settings(max_examples=200, deadline=None)
@given(problems())
def test_no_placement_is_cheaper(problem: PlacementProblem) -> None:
    placements = [
        places
        for places in itertools.product((GPU, CPU), repeat=len(problem.us))
        if all(places[operator] == place for operator, place in problem.fixed.items())
    ]
    found = tuple(place_by_cost(problem))
    assert found in placements
    best = min(map(problem.total, placements))
    assert problem.total(found) == pytest.approx(best)
    fewest = min(sum(p) for p in placements if problem.total(p) == pytest.approx(best))
    assert sum(found) == fewest, "of equals, the one that leaves the fewest on the CPU"


def test_a_tensor_is_paid_for_once() -> None:
    """Three readers on the CPU gain 9 each; one copy of 20 is worth it, three would not be."""
    readers = (1, 2, 3)
    problem = PlacementProblem(
        [(0.0, 0.0), *[(10.0, 1.0)] * 3], {0: GPU}, [Transfer(0, readers, (0.0, 20.0))]
    )
    assert place_by_cost(problem) == [GPU, CPU, CPU, CPU]
    assert problem.total([GPU, CPU, CPU, CPU]) == 23.0


def test_a_copy_may_cost_more_than_it_gains() -> None:
    problem = PlacementProblem([(0.0, 0.0), (10.0, 1.0)], {0: GPU}, [Transfer(0, (1,), (0.0, 9.5))])
    assert place_by_cost(problem) == [GPU, GPU]


def test_fusion_lost_is_counted() -> None:
    """The consumer costs nothing behind its producer, and 7 µs alone."""
    seam = Seam(1, 2, (7.0, 7.0))
    problem = PlacementProblem([(0.0, 0.0), (5.0, 1.0), (0.0, 0.0)], {2: GPU}, (), [seam])
    assert place_by_cost(problem) == [GPU, GPU, GPU]
    assert problem.total([GPU, CPU, GPU]) == 8.0
