"""Which tensors cross between devices without a copy, and that nobody reads what another wrote."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from tvm import relax

from tests.relay_passes.two_devices import (
    CPU,
    GPU,
    SHARED,
    Program,
    assert_right,
    called,
    execute,
    lines,
    lowered,
    programs,
    pure,
)
from tvm_edge.relay_passes.instructions.shared_copies import shared_copies
from tvm_edge.relay_passes.ir import aliases
from tvm_edge.relay_passes.ir.copy_functions import (
    COPY,
    FINISH_WRITE,
    HAND_OVER,
    READ,
    START_READ,
    WRITE,
)
from tvm_edge.relay_passes.ir.expressions import is_call


def decided(p: Program, *results: relax.Var) -> list[str]:
    """Return the decision for each copy between devices."""
    found = shared_copies(p.module(*results), SHARED)
    return [found.get(var, COPY) for var in p.crossed]


# ------------------------------------------------------------------------------- what is lowered


def test_to_the_cpu() -> None:
    p = Program()
    a = p.kernel(GPU, p.x)
    b = p.kernel(CPU, p.cross(a))
    mod = lowered(p.module(b))
    assert list(filter(None, (called(value) for _, value in lines(mod)))) == ["g0_1", READ, "c2_1"]
    made = [value for _, value in lines(mod) if is_call(value, "relax.memory.alloc_storage")]
    assert [int(value.args[1].value) for value in made] == [GPU]


def test_to_the_gpu() -> None:
    p = Program()
    a = p.kernel(CPU, p.c)
    b = p.kernel(GPU, p.cross(a))
    mod = lowered(p.module(b))
    names = list(filter(None, (called(value) for _, value in lines(mod))))
    assert names == [WRITE, "c0_1", HAND_OVER, "g2_1"]
    made = [value for _, value in lines(mod) if is_call(value, "relax.memory.alloc_storage")]
    assert [int(value.args[1].value) for value in made] == [GPU]


def test_devices_of_their_own_memory_copy() -> None:
    p = Program()
    a = p.kernel(GPU, p.x)
    b = p.kernel(CPU, p.cross(a))
    mod = lowered(p.module(p.kernel(GPU, p.cross(b))), shared=False)
    names = list(filter(None, (called(value) for _, value in lines(mod))))
    assert names == ["g0_1", COPY, "c2_1", COPY, "g4_1"]


def kept(case: str) -> tuple[Program, list[relax.Var]]:
    """Programs whose last copy is as the case says, and their results."""
    p = Program()
    n = tvm.tirx.Var("n", "int64")
    made = p.kernel(CPU, p.c)
    match case:
        case "an input of the CPU":
            return p, [p.kernel(GPU, p.cross(p.c))]
        case "a view of an input":
            return p, [p.kernel(GPU, p.cross(p.view(p.c)))]
        case "a result":
            return p, [made, p.kernel(GPU, p.cross(made))]
        case "a view is a result":
            return p, [p.view(made), p.kernel(GPU, p.cross(made))]
        case "the other field is a result":
            pair = p.kernel(CPU, p.c, sizes=(16, 16))
            return p, [p.item(pair, 1), p.kernel(GPU, p.cross(p.item(pair, 0)))]
        case "unknown length":
            return p, [p.kernel(GPU, p.cross(p.kernel(CPU, p.c, sizes=(n,))))]
        case "written later":
            crossed = p.cross(made)
            return p, [p.kernel(GPU, crossed, p.cross(p.kernel(CPU, p.over(p.c, made))))]
        case "written before":
            return p, [p.kernel(GPU, p.cross(p.over(p.c, made)))]
        case "crossed before":
            return p, [p.kernel(GPU, p.cross(made), p.cross(made))]
        case "a view" | "a tuple":
            if case == "a view":
                return p, [p.kernel(GPU, p.cross(p.view(made)))]
            pair = p.kernel(CPU, p.c, sizes=(16, 99))
            return p, [p.kernel(GPU, p.cross(p.item(pair, 0)))]
        case "of the GPU, an input":
            return p, [p.kernel(CPU, p.cross(p.x))]
        case "of the GPU, a view":
            return p, [p.kernel(CPU, p.cross(p.view(p.kernel(GPU, p.x))))]
        case "of the GPU, unknown length":
            return p, [p.kernel(CPU, p.cross(p.kernel(GPU, p.x, sizes=(n,))))]
        case "of the GPU, a result there":
            there = p.kernel(GPU, p.x)
            return p, [there, p.kernel(CPU, p.cross(there))]
        case "of the GPU, a result here":
            return p, [p.view(p.cross(p.kernel(GPU, p.x)))]
        case "of the GPU, written later":
            there = p.kernel(GPU, p.x)
            here = p.cross(there)
            return p, [p.over(p.x, p.view(there)), p.kernel(CPU, here)]
        case "of the GPU, written here":
            return p, [p.kernel(CPU, p.over(p.c, p.cross(p.kernel(GPU, p.x))))]
    raise AssertionError(case)


@pytest.mark.parametrize(
    ("case", "ways"),
    {
        "an input of the CPU": [COPY],
        "a view of an input": [COPY],
        "a result": [COPY],
        "a view is a result": [COPY],
        "the other field is a result": [HAND_OVER],
        "unknown length": [COPY],
        "written later": [COPY, HAND_OVER],
        "written before": [HAND_OVER],
        "crossed before": [HAND_OVER, COPY],
        "a view": [HAND_OVER],
        "a tuple": [HAND_OVER],
        "of the GPU, an input": [READ],
        "of the GPU, a view": [READ],
        "of the GPU, unknown length": [READ],
        "of the GPU, a result there": [READ],
        "of the GPU, a result here": [COPY],
        "of the GPU, written later": [COPY],
        "of the GPU, written here": [COPY],
    }.items(),
)
def test_what_is_copied(case: str, ways: list[str]) -> None:
    """The decision, what is lowered, and where it is written."""
    p, results = kept(case)
    assert decided(p, *results) == ways
    mod = assert_right(p.module(*results))
    functions = [called(value) for _, value in lines(mod)]
    assert [name for name in functions if name in (COPY, READ, HAND_OVER)] == ways
    assert functions.count(WRITE) == ways.count(HAND_OVER)


def test_a_view_is_written_in_its_own_shape() -> None:
    p, results = kept("a view")
    mod = lowered(p.module(*results))
    shapes = [tuple(map(int, var.ty.shape)) for var, value in lines(mod) if called(value) == WRITE]
    assert shapes == [(4, 4)]
    kernel = next(value for _, value in lines(mod) if called(value).startswith("c"))
    assert tuple(map(int, kernel.args[-1].ty.shape)) == (16,)


def test_a_tensor_without_an_allocation_is_handed_over_by_a_copy() -> None:
    """A case that the decision did not foresee costs a copy, and nothing else."""
    p, results = kept("an input of the CPU")
    mod = p.module(*results)
    with pytest.MonkeyPatch.context() as patch:
        ways = dict.fromkeys(p.crossed, HAND_OVER)
        patch.setattr(
            "tvm_edge.relay_passes.instructions.lower_copies.shared_copies", lambda *_: ways
        )
        found = lowered(mod)
    assert WRITE not in [called(value) for _, value in lines(found)]
    assert execute(found, "fine") == pure(mod)


# -------------------------------------------------------------------------------- any program


@settings(max_examples=120, deadline=None, derandomize=True)
@given(programs())
def test_nobody_reads_what_another_wrote(mod: tvm.IRModule) -> None:
    assert_right(mod, shared=False)
    names = Counter(called(value) for _, value in lines(assert_right(mod)))
    assert names[READ] + names[START_READ] + names[HAND_OVER] == len(shared_copies(mod, SHARED))
    # One that was handed over for nothing would be copied.
    assert names[WRITE] + names[FINISH_WRITE] == names[HAND_OVER]


@pytest.mark.parametrize("forgotten", ["overwritten", "results", "made"])
def test_that_the_check_finds_a_forgotten_rule(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {
        "overwritten": "of the GPU, written later",
        "results": "a result",
        "made": "an input of the CPU",
    }[forgotten]
    p, results = kept(case)
    before = aliases.Lives.__init__

    def forget(self: aliases.Lives, main: relax.Function) -> None:
        before(self, main)
        nothing: dict[str, Any] = {"overwritten": {}, "results": frozenset()}
        nothing["made"] = dict.fromkeys(p.inputs, (16,))
        setattr(self, forgotten, nothing[forgotten])

    monkeypatch.setattr(aliases.Lives, "__init__", forget)
    assert COPY not in decided(p, *results)
