"""Stages of a program on two devices: what they do in turn is what the program does."""

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
    called,
    lines,
    lowered,
    named,
    names,
    programs,
    pure,
    values,
)
from tvm_edge.relay_passes.instructions.split_stages import Stage, _Splitter, split_stages
from tvm_edge.relay_passes.ir.copy_functions import COPY, READ
from tvm_edge.relay_passes.ir.expressions import is_call

KINDS = {True: ("fine", "mapped", "own"), False: ("own", "cuda")}


def split(mod: tvm.IRModule, shared: bool = True) -> list[tuple[int, tvm.IRModule]]:
    """The device of each stage, and the stage as the lowered ``main`` of a module."""
    weights = relax.Var("weights", relax.TupleType([]))
    main = mod["main"]
    lifted = mod.clone()
    lifted["main"] = relax.Function([*main.params, weights], main.body, main.ret_ty, True)
    stages = split_stages(lifted, two_devices.SHARED if shared else ())

    def alone(stage: Stage) -> tvm.IRModule:
        function = stage.function.with_attr("global_symbol", "main")
        return tvm.IRModule({"main": function}, global_infos=mod.global_infos)

    return [(stage.device, lowered(alone(stage), shared=False)) for stage in stages]


def pipelined(stages: list[tuple[int, tvm.IRModule]], kind: str, fast: bool) -> list[Any]:
    """The results of frames of which each is a stage ahead of the one behind it."""
    queue, frames = two_devices.Queue(fast), 3
    params = stages[0][1]["main"].params[:-1]
    state: list[list[Any]] = [[named(param.name) for param in params] for _ in range(frames)]
    for step in range(len(stages) + frames - 1):
        for frame in range(frames):
            if 0 <= step - frame < len(stages):
                _, mod = stages[step - frame]
                state[frame] = two_devices.call(mod, [*state[frame], []], kind, queue)
    return [values(each) for each in state]


def assert_right(mod: tvm.IRModule, shared: bool = True) -> list[list[str]]:
    """Assert that frames in stages give the program's results, for each memory and queue."""
    stages = split(mod, shared)
    expected = pure(mod)
    for kind in KINDS[shared]:
        for fast in (False, True):
            for found in pipelined(stages, kind, fast):
                assert found == expected, (kind, fast)
    return [names(stage) for _, stage in stages]


def chain() -> tvm.IRModule:
    """The GPU, the CPU and the GPU again."""
    p = Program()
    a = p.kernel(GPU, p.kernel(GPU, p.x))
    b = p.kernel(CPU, p.kernel(CPU, p.cross(a)))
    return p.module(p.kernel(GPU, p.cross(b), a))


@pytest.mark.parametrize("shared", [True, False])
def test_copies_are_the_gpus(shared: bool) -> None:
    read = READ if shared else COPY
    assert assert_right(chain(), shared) == [["g", "g", read], ["c", "c"], [COPY, "g", COPY]]
    assert [device for device, _ in split(chain(), shared)] == [GPU, CPU, GPU]


def test_what_a_stage_returns_is_in_no_storage_that_is_used_again() -> None:
    planned = 0
    for _, stage in split(chain()):
        held = {stage["main"].body.body}
        for var, value in reversed(lines(stage)):
            if var in held or called(value) == READ:
                held |= set(relax.analysis.free_vars(value))
            if is_call(value, "relax.memory.alloc_tensor"):
                assert var not in held
                planned += 1
    assert planned == 4  # what one stage alone uses


def test_the_gpu_gets_all_its_work_before_it_is_waited_for() -> None:
    p = Program()
    trunk = p.kernel(GPU, p.x)
    one = p.cross(trunk)
    other = p.kernel(GPU, p.kernel(GPU, trunk))
    mod = p.module(p.kernel(CPU, one), other)
    # The other result is copied to the CPU, by the GPU's stage as well.
    assert assert_right(mod) == [["g", "g", "g", READ, COPY], ["c"]]


def test_what_is_written_later_crosses_before() -> None:
    p = Program()
    trunk = p.kernel(GPU, p.x)
    seen = p.cross(trunk)
    again = p.over(p.x, trunk)
    assert assert_right(p.module(p.kernel(CPU, seen), again)) == [["g", COPY, "g", COPY], ["c"]]


def test_a_part_is_handed_on_without_the_rest() -> None:
    p = Program()
    pair = p.kernel(GPU, p.x, sizes=(16, 16))
    c = p.kernel(CPU, p.cross(p.view(p.item(pair, 0))))
    mod = p.module(p.kernel(GPU, p.cross(c), p.item(pair, 1)))
    assert assert_right(mod) == [["g", READ], ["c"], [COPY, "g", COPY]]
    for _, stage in split(mod)[:2]:
        assert all(isinstance(ty, relax.TensorType) for ty in stage["main"].ret_ty.fields)


def test_one_device_has_no_stages() -> None:
    p = Program()
    assert split(p.module(p.kernel(GPU, p.kernel(GPU, p.x)))) == []


@settings(max_examples=30, deadline=None, derandomize=True)
@given(programs())
def test_any_program(mod: tvm.IRModule) -> None:
    if not split(mod):
        return
    for shared in (False, True):
        for stage, found in zip(split(mod, shared), assert_right(mod, shared), strict=True):
            kernels = {name for name in found if name in "gc"}
            assert kernels <= {"gc"[stage[0]]}, "a stage has kernels of its device alone"


def test_that_the_check_finds_a_copy_that_comes_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = Program()
    trunk = p.kernel(GPU, p.x)
    seen = p.cross(trunk)
    again = p.over(p.x, trunk)
    mod = p.module(p.kernel(CPU, seen), again)
    monkeypatch.setattr(_Splitter, "_changes_after", lambda *_: False)
    with pytest.raises(AssertionError):
        assert_right(mod)
