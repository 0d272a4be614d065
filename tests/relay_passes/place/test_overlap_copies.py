"""Order of launches and waits: the GPU has its work before the host waits for results."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from tvm import relax

from tests.relay_passes import two_devices
from tests.relay_passes.two_devices import (
    CPU,
    GPU,
    Program,
    assert_right,
    device_of,
    lines,
    lowered,
    names,
    programs,
    pure,
)
from tvm_edge.relay_passes.instructions.split_reads import late_reads
from tvm_edge.relay_passes.ir import aliases
from tvm_edge.relay_passes.ir.copy_functions import (
    COPY,
    FINISH_READ,
    FINISH_WRITE,
    HAND_OVER,
    READ,
    START_READ,
    START_WRITE,
    WRITE,
)
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.relay_passes.place.gpu_work_first import gpu_work_first


def two_heads() -> tuple[Program, list[relax.Var]]:
    """One kernel of the GPU, read by the CPU first and by the GPU then."""
    p = Program()
    trunk = p.kernel(GPU, p.x)
    one = p.kernel(CPU, p.cross(trunk))
    other = p.kernel(GPU, p.kernel(GPU, trunk))
    return p, [one, other]


@pytest.mark.parametrize("shared", [True, False])
def test_the_gpu_gets_its_work_before_the_cpu_begins(shared: bool) -> None:
    p, results = two_heads()
    mod = gpu_work_first(p.module(*results))
    assert names(assert_right(mod, shared)) == ["g", START_READ, "g", "g", FINISH_READ, "c"]


def test_a_read_that_nothing_overlaps_is_one_call() -> None:
    p = Program()
    a = p.kernel(GPU, p.x)
    mod = gpu_work_first(p.module(p.kernel(CPU, p.cross(a))))
    assert names(lowered(mod)) == ["g", READ, "c"]
    assert names(lowered(mod, shared=False)) == ["g", COPY, "c"]


def test_the_cpu_writes_what_no_kernel_that_runs_uses() -> None:
    """It waits for no work of the GPU's, whose last run may still use the memory."""
    p = Program()
    other = p.kernel(GPU, p.x)
    mod = gpu_work_first(p.module(p.kernel(GPU, p.cross(p.kernel(CPU, p.c)), other)))
    assert names(assert_right(mod)) == [START_WRITE, "g", FINISH_WRITE, "c", HAND_OVER, "g"]


def test_there_and_back_beside_other_work() -> None:
    p = Program()
    trunk = p.kernel(GPU, p.x)
    back = p.cross(p.kernel(CPU, p.cross(trunk)))
    joined = p.kernel(GPU, back, p.kernel(GPU, p.kernel(GPU, trunk)))
    found = assert_right(gpu_work_first(p.module(joined)))
    expected = ["g", START_WRITE, START_READ, "g", "g", FINISH_READ, FINISH_WRITE, "c", HAND_OVER]
    assert names(found) == [*expected, "g"]


def test_the_cpu_does_not_wait_twice() -> None:
    """After a wait for everything there is nothing to wait for."""
    p = Program()
    c = p.kernel(CPU, p.cross(p.kernel(GPU, p.x)))
    found = assert_right(gpu_work_first(p.module(p.kernel(GPU, p.cross(c)))))
    assert names(found) == ["g", READ, WRITE, "c", HAND_OVER, "g"]


def late(case: str) -> tuple[Program, list[relax.Var]]:
    p = Program()
    trunk = p.kernel(GPU, p.x)
    seen = p.cross(trunk)
    match case:
        case "written later":
            return p, [p.over(p.x, trunk), p.kernel(CPU, seen)]
        case "a result":
            return p, [p.kernel(GPU, p.x), p.kernel(CPU, seen), seen]
        case "of an input":
            seen = p.cross(p.x)
            return p, [p.kernel(GPU, p.x), p.kernel(CPU, seen)]
        case "written here":
            return p, [p.kernel(GPU, p.x), p.over(p.c, seen)]
        case "beside the CPU alone":
            return p, [p.kernel(CPU, p.c), p.kernel(CPU, seen)]
        case "of what nobody reads":
            return p, [p.kernel(GPU, p.x)]
    raise AssertionError(case)


@pytest.mark.parametrize(
    ("case", "splits"),
    {
        "written later": 0,
        "a result": 0,
        "of an input": 1,
        "written here": 0,
        "beside the CPU alone": 0,
        "of what nobody reads": 0,
    }.items(),
)
def test_which_reads_are_late(case: str, splits: int) -> None:
    p, results = late(case)
    mod = p.module(*results)
    assert len(late_reads(mod)) == splits
    for shared in (False, True):
        assert names(assert_right(mod, shared)).count(START_READ) == splits


@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs(in_place=False))
def test_any_program(mod: tvm.IRModule) -> None:
    ordered = gpu_work_first(mod)
    assert pure(ordered) == pure(mod)
    assert {var for var, _ in lines(ordered)} == {var for var, _ in lines(mod)}
    for shared in (False, True):
        assert_right(ordered, shared)
    # Nothing of the GPU's stands behind a kernel of the CPU that it does not need.
    needs: dict[relax.Var, set[relax.Var]] = {}
    before: list[relax.Var] = []
    for var, value in lines(ordered):
        used = relax.analysis.free_vars(value)
        needs[var] = set(used).union(*(needs.get(each, ()) for each in used))
        if is_call(value, "relax.call_tir"):
            if device_of_result(var) == CPU:
                before.append(var)
            else:
                assert not before or needs[var] & set(before)


def device_of_result(var: relax.Var) -> int:
    ty = var.ty if isinstance(var.ty, relax.TensorType) else var.ty.fields[0]
    return device_of(relax.Var("like", ty))


@pytest.mark.parametrize("forgotten", ["overwritten", "results"])
def test_that_the_check_finds_a_forgotten_rule(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, results = late({"overwritten": "written later", "results": "a result"}[forgotten])
    before = aliases.Lives.__init__

    def forget(self: aliases.Lives, main: relax.Function) -> None:
        before(self, main)
        nothing: dict[str, Any] = {"overwritten": {}, "results": frozenset()}
        setattr(self, forgotten, nothing[forgotten])

    monkeypatch.setattr(aliases.Lives, "__init__", forget)
    assert late_reads(p.module(*results))


def test_that_the_machine_notices_what_was_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    p, results = two_heads()
    monkeypatch.setattr(two_devices.Queue, "wait", lambda self, place=None: None)
    with pytest.raises(AssertionError):
        assert_right(gpu_work_first(p.module(*results)))
