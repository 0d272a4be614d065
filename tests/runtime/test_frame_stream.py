"""``stream``: frames in order, several at a time, on one device and on two; errors, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import choosing, make_model, random_input
from tests.runtime.frames import (
    SHAPE,
    WAIT_S,
    Frame,
    assert_right,
    frames,
    network,
    there_and_back,
    threads,
)
from tvm_edge import InputError
from tvm_edge.report.memory import PlanInfo
from tvm_edge.runtime.frame_stream import FrameStream, Step
from tvm_edge.runtime.session import Session


def named(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    node.name = name
    return node


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("depth", [1, 3])
def test_two_devices(mixed: tvm_edge.CompiledModel, gpu: str, depth: int) -> None:
    """Every result is what ``run`` gives, bit for bit, in the order of the frames."""
    given = frames(12)
    stream = mixed.stream(given, depth)
    assert stream.stages == (gpu, "llvm", gpu)
    assert list(stream.stages) == [device for device, _ in mixed.report.partitions]
    found = list(stream)
    assert_right(there_and_back(), found, given)
    for outputs, inputs in zip(found, given, strict=True):
        for name, value in mixed.run(inputs).items():
            np.testing.assert_array_equal(outputs[name], value)
    assert not threads()


def test_one_device(on_cpu: tvm_edge.CompiledModel) -> None:
    given = frames(8)
    stream = on_cpu.stream(given)
    assert stream.stages == ("llvm",)
    assert_right(there_and_back(), list(stream), given)


def test_a_gpu_alone(gpu: str) -> None:
    given = frames(5)
    stream = tvm_edge.compile(there_and_back(), gpu, fallback="none").stream(given)
    assert stream.stages == (gpu,)
    assert_right(there_and_back(), list(stream), given)


@pytest.mark.parametrize(
    "fallback",
    [["Split", "Tanh"], *in_full(["Add"], ["Tanh", "Sigmoid"], ["Conv"], ["Reshape"])],
    ids="-".join,
)
def test_fields_views_and_early_results(gpu: str, fallback: list[str]) -> None:
    model = tvm_edge.compile(network(), gpu, fallback=fallback)
    given = frames(6)
    stream = model.stream(given, 3)
    # A reshape is a view wherever its tensor is: a device for it moves nothing.
    assert (len(stream.stages) > 2) == (fallback != ["Reshape"])
    assert_right(network(), list(stream), given)


def unknown_lengths() -> onnx.ModelProto:
    """Model of a ReLU's nonzero places, whose number is known at run time only."""
    return make_model(
        [
            helper.make_node("Relu", ["data"], ["positive"]),
            named(helper.make_node("NonZero", ["positive"], ["places"]), "find"),
            helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
            named(helper.make_node("Tanh", ["numbers"], ["small"]), "squash"),
            helper.make_node("Mul", ["small", "numbers"], ["result"]),
        ],
        {"data": (4, 8)},
        ["result", "positive"],
    )


@pytest.mark.parametrize("fallback", [["find"], *in_full(["squash"])], ids="".join)
def test_lengths_that_only_the_run_knows(gpu: str, fallback: list[str]) -> None:
    """They differ between frames on their way."""
    model = tvm_edge.compile(unknown_lengths(), gpu, fallback=fallback)
    given = [{"data": random_input((4, 8), seed)} for seed in range(6)]
    stream = model.stream(given, 3)
    assert len(stream.stages) > 1
    assert_right(unknown_lengths(), list(stream), given)


def test_an_artifact(mixed: tvm_edge.CompiledModel, tmp_path: Path) -> None:
    loaded = tvm_edge.load(mixed.export(tmp_path / "mixed.tvme"))
    stream = loaded.stream(frames(4))
    assert len(stream.stages) == 3
    assert_right(there_and_back(), list(stream), frames(4))


def test_some_outputs(mixed: tvm_edge.CompiledModel) -> None:
    assert [list(each) for each in mixed.stream(frames(2), outputs=["t0"])] == [["t0"]] * 2


def test_a_source_that_writes_every_frame_into_one_array(
    mixed: tvm_edge.CompiledModel, on_cpu: tvm_edge.CompiledModel
) -> None:
    image = np.empty(SHAPE, "float32")

    def camera() -> Iterator[Frame]:
        for frame in frames(6):
            image[:] = frame["data"]
            yield {"data": image}
            image[:] = np.nan

    for model in (mixed, on_cpu):
        assert_right(there_and_back(), list(model.stream(camera(), 3)), frames(6))


@pytest.mark.parametrize("fallback", [["Tanh"], *in_full("none")], ids=str)
def test_results_that_are_inputs_or_weights_are_the_callers(
    gpu: str, fallback: str | list[str]
) -> None:
    graph = make_model(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Identity", ["weight"], ["constant"]),
            helper.make_node("Tanh", ["x"], ["t"]),
            helper.make_node("MatMul", ["t", "weight"], ["product"]),
        ],
        {"x": (4, 8)},
        ["same", "constant", "product", "t"],
        {"weight": random_input((8, 8))},
    )
    model = tvm_edge.compile(graph, gpu, fallback=fallback)
    given = [{"x": random_input((4, 8), seed)} for seed in range(6)]
    stream = model.stream(given)
    assert len(stream.stages) == (1 if fallback == "none" else 2)
    found = list(stream)
    assert_right(graph, found, given)
    for outputs in found:
        for value in outputs.values():
            value[:] = np.nan
    assert_right(graph, list(model.stream(given)), given)


@pytest.mark.full
def test_branches_are_one_stage(gpu: str) -> None:
    """Both devices have kernels in them."""
    model = tvm_edge.compile(choosing(), gpu, fallback=["exp"])
    given = [
        {"data": np.abs(random_input((4, 8), seed)), "which": np.array(seed % 2 == 0)}
        for seed in range(4)
    ]
    stream = model.stream(given)
    assert stream.stages == (gpu,)
    assert_right(choosing(), list(stream), given)


# ------------------------------------------------------------------ at the same time


class Meeting:
    """Two steps that only go on together: each in a thread, while the other runs."""

    def __init__(self, *steps: tuple[int, int]) -> None:
        self._steps = steps
        self._barrier = threading.Barrier(2)
        self._counts: dict[int, int] = {}
        self.met: list[tuple[int, int]] = []

    def come_to(self, stage: int) -> None:
        """Note that a stage begins with its next frame."""
        frame = self._counts.setdefault(stage, 0)
        self._counts[stage] += 1
        if (stage, frame) in self._steps:
            self._barrier.wait(WAIT_S)
            self.met.append((stage, frame))


def test_devices_work_on_different_frames_at_the_same_time(
    mixed: tvm_edge.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU does not begin with frame 0 until the GPU is at frame 1, nor the other way round."""
    meeting = Meeting((1, 0), (0, 1))
    run_stage = Session.run_stage

    def instrumented(self: Session, number: int, given: Any) -> Any:
        meeting.come_to(number)
        return run_stage(self, number, given)

    monkeypatch.setattr(Session, "run_stage", instrumented)
    assert_right(there_and_back(), list(mixed.stream(frames(4))), frames(4))
    assert sorted(meeting.met) == [(0, 1), (1, 0)]


def test_a_frame_is_taken_while_the_one_before_is_worked_on(
    on_cpu: tvm_edge.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first frame is not run until the second is asked for, nor the other way round."""
    asked, begun = threading.Event(), threading.Event()
    run = Session.run

    def instrumented(*arguments: Any) -> Any:
        begun.set()
        assert asked.wait(WAIT_S)
        return run(*arguments)

    def source() -> Iterator[Frame]:
        first, second = frames(2)
        yield first
        asked.set()
        assert begun.wait(WAIT_S)
        yield second

    monkeypatch.setattr(Session, "run", instrumented)
    assert_right(there_and_back(), list(on_cpu.stream(source())), frames(2))


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_frames_are_on_their_way_than_said(
    on_cpu: tvm_edge.CompiledModel, depth: int
) -> None:
    taken = 0

    def source() -> Iterator[Frame]:
        nonlocal taken
        for frame in frames(8):
            taken += 1
            yield frame

    stream = on_cpu.stream(source(), depth)
    assert taken == 0
    for returned in range(1, 9):
        next(stream)
        assert taken == min(returned - 1 + depth, 8)


def test_streams_and_runs_beside_each_other(mixed: tvm_edge.CompiledModel) -> None:
    one, two = frames(6), frames(6, first=20)
    found: tuple[list[Frame], list[Frame], list[Frame]] = ([], [], [])
    with mixed.stream(one) as first, mixed.stream(two, 3) as second:
        for outputs, others, inputs in zip(first, second, one, strict=True):
            found[0].append(outputs)
            found[1].append(others)
            found[2].append(mixed.run(inputs))
    for part, given in zip(found, (one, two, one), strict=True):
        assert_right(there_and_back(), part, given)


# ------------------------------------------------------------------ errors


def outcomes(stream: Iterator[Frame]) -> list[Any]:
    """Return the outcome of each ``next`` until the end: outputs, or the error's type."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(stream))
        except StopIteration:
            return found
        except Exception as err:
            found.append(type(err))


WRONG: dict[str, Any] = {
    "shape": {"data": random_input((1, 8, 12, 11))},
    "type": {"data": np.zeros(SHAPE)},
    "name": {"dta": random_input(SHAPE)},
    "no dict": random_input(SHAPE),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_frame_is_raised_in_its_turn(
    on_cpu: tvm_edge.CompiledModel, case: str
) -> None:
    given = frames(6)
    found = outcomes(on_cpu.stream([*given[:2], WRONG[case], *given[2:]], 2))
    assert found.pop(2) is InputError
    assert_right(there_and_back(), found, given)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_what_fails_in_a_stage_is_raised_in_its_turn(
    mixed: tvm_edge.CompiledModel, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage, seen = Session.run_stage, [0, 0, 0]

    def failing(self: Session, number: int, given: Any) -> Any:
        seen[number] += 1
        if (number, seen[number]) == (stage, 3):
            raise ArithmeticError("of the third frame")
        return run_stage(self, number, given)

    monkeypatch.setattr(Session, "run_stage", failing)
    given = frames(6)
    found = outcomes(mixed.stream(given, 3))
    assert found.pop(2) is ArithmeticError
    assert_right(there_and_back(), found, given[:2] + given[3:])


def test_what_the_source_raises_comes_behind_the_frames_before(
    mixed: tvm_edge.CompiledModel,
) -> None:
    def source() -> Iterator[Frame]:
        yield from frames(3)
        raise OSError("the camera is gone")

    stream = mixed.stream(source(), 2)
    found = outcomes(stream)
    assert found.pop() is OSError
    assert_right(there_and_back(), found, frames(3))
    assert not threads() and list(stream) == []


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"depth": 0}, "depth"),
        ({"depth": -1}, "depth"),
        ({"depth": 1.5}, "depth"),
        ({"depth": True}, "depth"),
        ({"frames": 3}, "frames"),
        ({"frames": None}, "frames"),
        ({"frames": {"data": random_input(SHAPE)}}, "frames"),
        ({"outputs": ["nothing"]}, "nothing"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(
    on_cpu: tvm_edge.CompiledModel, wrong: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError) as caught:
        on_cpu.stream(**{"frames": [], **wrong})
    assert caught.value.name == name
    assert not threads()


# ------------------------------------------------------------------ warm-up


def test_a_warm_model_makes_nothing_for_its_first_frame(
    mixed: tvm_edge.CompiledModel,
    on_cpu: tvm_edge.CompiledModel,
    gpu: str,
) -> None:
    """Nor for a first run: virtual machines are there."""
    model, one = mixed.on_device(gpu), on_cpu.on_device("cpu")  # sessions of their own
    model.warmup()
    one.warmup()

    made = model._session.machines, one._session.machines
    given = frames(2)
    assert_right(there_and_back(), list(model.stream(given)), given)
    assert_right(there_and_back(), [one.run(given[0])], given[:1])
    assert (model._session.machines, one._session.machines) == made


def test_a_model_whose_plan_is_to_pipeline_warms_up_for_a_stream_alone(
    mixed: tvm_edge.CompiledModel, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would take activations of its own beside it."""
    model = mixed.on_device(gpu)
    memory = model.report.memory
    assert memory is not None
    plan = PlanInfo("FC on the CPU, pipelined", memory.peak, 1.0, "", True, "", pipelined=True)
    planned = replace(model._info.report, memory=replace(memory, plans=(plan,)))
    monkeypatch.setattr(model, "_info", replace(model._info, report=planned))
    assert model.report.memory == planned.memory

    def refuse(*_arguments: Any) -> None:
        raise AssertionError("ran")

    monkeypatch.setattr(Session, "warm_up", refuse)
    model.warmup()
    made = model._session.machines
    given = frames(2)
    assert_right(there_and_back(), list(model.stream(given)), given)
    assert model._session.machines == made


def test_a_thread_that_cannot_start_is_an_error_at_once() -> None:
    def start() -> None:
        raise OSError("no more threads")

    with pytest.raises(OSError, match="no more threads"):
        FrameStream([{}], 1, lambda frame, _: frame, [Step("llvm", lambda frame: frame, start)])
