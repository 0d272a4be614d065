"""Which plans there are, and which is taken."""

from __future__ import annotations

import pytest

from tvm_edge.errors import MemoryBudgetError
from tvm_edge.frontend import NodeCost, SourceNode
from tvm_edge.memory.plans import (
    AS_IS,
    Plan,
    Prediction,
    chosen,
    dense_nodes,
    offloaded,
    possible,
)

MIB = 1 << 20


def node(op_type: str, *inputs: int, weights: int = 0) -> SourceNode:
    return SourceNode(op_type.lower(), op_type, NodeCost(weight_bytes=weights), inputs)


CLASSIFIER = [
    node("Conv", weights=9 * MIB),
    node("Gemm", 0, weights=80 * MIB),
    node("LeakyRelu", 1),
    node("Gemm", 2, weights=4 * MIB),
    node("Softmax", 3),
    node("Gemm", 0, weights=1000),
]


GPU = {"beside_cpu": True, "unified": True, "offload": True}


def test_fully_connected_layers_are_those_with_weights() -> None:
    assert dense_nodes(CLASSIFIER) == [1, 3]


def test_what_is_behind_them_goes_with_them() -> None:
    assert offloaded(CLASSIFIER) == [1, 2, 3, 4]


def test_but_not_convolutions() -> None:
    """A generator's first layer: only what is between two layers on the CPU goes too."""
    generator = [*CLASSIFIER[:5], node("ConvTranspose", 4, weights=MIB), node("Tanh", 5)]
    assert offloaded(generator) == [1, 2, 3]


def names(**options: bool) -> tuple[list[str], dict[str, str]]:
    """The plans to be had, and why others are not."""
    plans = list(possible(CLASSIFIER, **(GPU | options)))
    return [p.name for p, why in plans if not why], {p.name: why for p, why in plans if why}


def test_plans_of_a_gpu() -> None:
    there, missing = names()
    assert there == [
        "as is",
        "no Winograd",
        "FC on the CPU",
        "FC on the CPU, pipelined",
        "FC on the CPU, no Winograd",
        *(f"FC split ×{parts}" for parts in (4, 16)),
        "FC split ×16, no Winograd",
        *(
            f"{base}, convolutions streamed{how}"
            for base in ("FC on the CPU", "FC split ×16")
            for how in ("", ", no Winograd", " ×4, no Winograd")
        ),
    ]
    assert list(missing) == ["unified memory"]


def test_plans_that_are_not_to_be_had_say_why() -> None:
    assert "one copy already" in names()[1]["unified memory"]
    assert "of its own" in names(unified=False)[1]["unified memory"]
    there, missing = names(beside_cpu=False)
    assert there == ["as is", "no Winograd"]
    assert "mapped" in missing["FC on the CPU"] and "mapped" in missing["FC split ×4"]
    _, missing = names(offload=False)
    assert "fallback=" in missing["FC on the CPU"]
    assert "fallback=" in missing["FC on the CPU, pipelined"]
    small = [node("Conv", weights=1000), *CLASSIFIER[1:]]
    reasons = {p.name: why for p, why in possible(small, **GPU)}
    assert "no convolution" in reasons["FC on the CPU, convolutions streamed"]


def test_plans_without_fully_connected_layers() -> None:
    plans = list(possible(CLASSIFIER[:1], **GPU))
    assert [p.name for p, why in plans if not why] == [
        "as is",
        "no Winograd",
        "convolutions streamed",
        "convolutions streamed, no Winograd",
        "convolutions streamed ×4, no Winograd",
    ]
    streamed = {p.name: p.instead_of for p, _ in plans if p.conv_window}
    assert list(streamed.values()) == ["as is", "no Winograd", list(streamed)[1]]


def test_a_window_is_a_part_of_the_largest_layer() -> None:
    plans = possible(CLASSIFIER, **GPU)
    windows = {p.name: p.weight_window for p, _ in plans if p.weight_window}
    assert windows["FC split ×4"] == 2 * 20 * MIB and windows["FC split ×16"] == 2 * 5 * MIB
    windows = {p.name: p.conv_window for p, _ in possible(CLASSIFIER, **GPU) if p.conv_window}
    assert windows["FC on the CPU, convolutions streamed"] == 2 * 9 * MIB
    assert windows["FC split ×16, convolutions streamed ×4, no Winograd"] == 2 * 9 * MIB // 4


FAST, SLOW, SMALL = AS_IS, Plan("slow"), Plan("small")
CONSIDERED: list[tuple[Plan, Prediction | str]] = [
    (FAST, Prediction(FAST, 100 * MIB, 0.001, "this", 20 * MIB)),
    (Plan("absent"), "nobody wrote it"),
    (SLOW, Prediction(SLOW, 60 * MIB, 0.002, "that", 20 * MIB)),
    (SMALL, Prediction(SMALL, 50 * MIB, 0.003, "those", 20 * MIB)),
]


@pytest.mark.parametrize(
    ("budget", "taken"), [(200, "as is"), (100, "as is"), (99, "slow"), (60, "slow"), (50, "small")]
)
def test_the_fastest_that_fits(budget: int, taken: str) -> None:
    plan, infos = chosen(budget * MIB, "net", CONSIDERED, "or not at all")
    assert plan.name == taken
    assert [info.name for info in infos] == ["as is", "absent", "slow", "small"]
    assert [info.name for info in infos if info.taken] == [taken]
    reasons = {info.name: info.reason for info in infos}
    assert reasons[taken] == "the fastest that fits"
    assert reasons["absent"] == "nobody wrote it"
    if taken == "slow":
        assert reasons["as is"] == f"{100 - budget}.0 MiB above the budget"
        expected = "fits, and is slower" if budget >= 50 else "above"
        assert expected in reasons["small"]


def test_of_equally_fast_ones_the_first() -> None:
    twin = Plan("twin")
    considered = [*CONSIDERED, (twin, Prediction(twin, 10 * MIB, 0.001, "", 0))]
    plan, infos = chosen(200 * MIB, "net", considered, "")
    assert plan is FAST and infos[-1].reason == "fits, no faster"


def test_none_fits() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        chosen(49 * MIB, "net", CONSIDERED, "or do without")
    assert (caught.value.budget, caught.value.smallest_feasible) == (49 * MIB, 50 * MIB)
    message = str(caught.value)
    assert "net does not fit" in message and "'small'" in message and "or do without" in message
    assert "memory_budget='50.0 MiB' or more" in message and "20.0 MiB is the process" in message
