"""Code that is compiled runs, and is exported, as it is; progress and seconds of a compilation."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_edge
from tests.marks import needs_opencl
from tvm_edge import InputError
from tvm_edge.compiler import compilation
from tvm_edge.lowering import linker
from tvm_edge.lowering.deep_stack import map_on_deep_stacks


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, no_kernel_cache: None) -> list[str]:
    """Functions that code is generated for."""
    found: list[str] = []
    build = tvm.tirx.build

    def noted(mod: tvm.IRModule, **options: Any) -> Any:
        found.extend(str(gvar.name_hint) for gvar in mod.get_global_vars())
        return build(mod, **options)

    monkeypatch.setattr(tvm.tirx, "build", noted)
    return found


def test_code_is_generated_once(
    small_model: onnx.ModelProto, image: np.ndarray, generated: list[str], tmp_path: Path
) -> None:
    model = tvm_edge.compile(small_model, "llvm")
    kernels = {kernel.name for kernel in model.report.kernels}
    assert kernels <= set(generated) and len(generated) == len(set(generated))
    generated.clear()
    (here,) = model.run({"data": image}).values()
    model.export(tmp_path / "model.tvme")
    assert not generated
    (there,) = tvm_edge.load(tmp_path / "model.tvme").run({"data": image}).values()
    assert np.array_equal(here, there)


def test_a_model_runs_where_there_is_no_linker(
    small_model: onnx.ModelProto, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linker.Linker, "__call__", None)
    monkeypatch.setenv("PATH", "/nonexistent")
    model = tvm_edge.compile(small_model, "llvm")
    assert model.run({"data": image})


def test_seconds_sum_up_to_the_time_it_took(
    small_model: onnx.ModelProto, image: np.ndarray
) -> None:
    tvm_edge.compile(small_model, "llvm")  # imports what is imported once
    start = perf_counter()
    model = tvm_edge.compile(small_model, "llvm")
    took = perf_counter() - start
    seconds = dict(model.report.seconds)
    assert {"import", "lower", "build", "programs", "other"} <= set(seconds)
    assert 0 < sum(seconds.values()) <= took + 0.02  # each is rounded to a millisecond
    model.run({"data": image})
    first = model.report.seconds["first run"]
    model.run({"data": image})
    assert model.report.seconds == {**seconds, "first run": first} and first >= 0


def test_what_is_of_no_phase_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 11.0, 13.0, 17.0, 25.0, 26.0, 27.0, 41.0))
    monkeypatch.setattr(compilation, "perf_counter", lambda: next(times))
    clock = compilation.Clock()
    for phase in ("import", "lower", "import"):
        with clock(phase):
            pass
    assert clock.stopped() == {"import": 3.0, "lower": 8.0, "other": 20.0}


def test_progress(small_model: onnx.ModelProto) -> None:
    seen: list[tuple[str, int, int]] = []
    model = tvm_edge.compile(small_model, "llvm", progress=lambda *step: seen.append(step))
    assert {phase for phase, _, _ in seen} <= {*model.report.seconds}
    assert seen[0][0] == "import" and seen[-1][0] == "build"
    built = [(done, total) for phase, done, total in seen if phase == "build"]
    count = len(model._library.kernels.objects) + 1
    assert built == [(number, count) for number in range(count + 1)]
    assert all(0 <= done <= total for _, done, total in seen)


@pytest.mark.parametrize("phase", ["import", "lower", "build"])
def test_what_progress_raises_ends_the_compilation(
    small_model: onnx.ModelProto, phase: str
) -> None:
    class Enough(Exception):
        pass

    def stop(at: str, _done: int, _total: int) -> None:
        if at == phase:
            raise Enough

    with pytest.raises(Enough):
        tvm_edge.compile(small_model, "llvm", progress=stop)


@needs_opencl
def test_an_error_of_progress_is_no_failure_of_the_driver(small_model: onnx.ModelProto) -> None:
    """The driver's own errors wait for the first run; this one is the caller's."""

    def stop(phase: str, *_: int) -> None:
        if phase == "programs":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tvm_edge.compile(small_model, "opencl", fallback="none", progress=stop)


def test_progress_is_a_function(small_model: onnx.ModelProto) -> None:
    with pytest.raises(InputError, match="progress='bar'"):
        tvm_edge.compile(small_model, "llvm", progress="bar")  # type: ignore[arg-type]


@needs_opencl
def test_an_opencl_driver_builds_when_the_model_is_compiled(small_model: onnx.ModelProto) -> None:
    seen: list[tuple[str, int, int]] = []
    model = tvm_edge.compile(
        small_model, "opencl", fallback="none", progress=lambda *step: seen.append(step)
    )
    count = len(model.report.kernels)
    launched = [(done, total) for phase, done, total in seen if phase == "programs"]
    assert launched == [(number, count) for number in range(1, count + 1)]


@needs_opencl
def test_no_driver_builds_for_another_device(small_model: onnx.ModelProto) -> None:
    seen: list[str] = []
    tvm_edge.compile(small_model, "mali-t860", progress=lambda phase, *_: seen.append(phase))
    assert "build" in seen and "programs" not in seen


def test_the_first_error_of_threads_is_raised_and_no_more_is_begun() -> None:
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError):
        list(map_on_deep_stacks(call, range(1000), 1))
    assert begun == [0, 1]
    assert sorted(map_on_deep_stacks(lambda number: number, range(50), 3)) == list(range(50))
    assert list(map_on_deep_stacks(call, (), 2)) == []
