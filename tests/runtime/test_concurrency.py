"""Many threads at once: every result is the one that a run alone gives, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_edge
from tests.onnx_models import conv_relu, random_input
from tests.runtime.support import at_once, wide_conv
from tvm_edge.host import allowed_cpus

WIDE = (1, 32, 56, 56)
SMALL = (1, 3, 16, 16)


def checker(
    model: tvm_edge.CompiledModel, x: Any, repeat: int, device_outputs: bool = False
) -> Callable[[], bool]:
    """Runs the model, and says whether it always gave what it gives now."""
    name = model.outputs[0].name
    expected = model.run({"data": x})[name]

    def check() -> bool:
        results = []
        for _ in range(repeat):
            result = model.run({"data": x}, device_outputs=device_outputs)[name]
            results.append(result)
        # Afterwards: nothing may have written over an earlier one meanwhile.
        found = [r.numpy() if device_outputs else r for r in results]
        return all(np.array_equal(result, expected) for result in found)

    return check


@pytest.mark.parametrize(("num_threads", "device_outputs"), [(1, True), (2, False)])
def test_one_model(num_threads: int, device_outputs: bool) -> None:
    model = tvm_edge.compile(wide_conv(), "llvm", num_threads=num_threads)
    inputs = [random_input(WIDE, seed) for seed in range(6)]
    assert all(at_once(*(checker(model, x, 10, device_outputs) for x in inputs)))


@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="one CPU runs one at a time")
def test_runs_that_fit_the_cpus_do_not_wait_for_each_other() -> None:
    """While one is held up, another comes through."""
    model = tvm_edge.compile(wide_conv(), "llvm", num_threads=1)
    x = random_input(WIDE)
    expected = model.run({"data": x})["result"]
    others: list[np.ndarray] = []
    with ThreadPoolExecutor(1) as pool:

        def meanwhile(_kernel: str, _before: bool) -> None:
            if not others:
                others.append(pool.submit(model.run, {"data": x}).result(timeout=30)["result"])

        session, every = model._session, model._every
        session.run_instrumented(every, [x], meanwhile)
    np.testing.assert_array_equal(others[0], expected)
    assert session.machines[0] == len(allowed_cpus())


def test_several_models() -> None:
    models = [tvm_edge.compile(wide_conv(n), "llvm", num_threads=n) for n in (1, 2)]
    checks = [checker(model, random_input(WIDE, seed), 8) for model in models for seed in (0, 1)]
    assert all(at_once(*checks))


def test_models_of_different_width_in_two_threads(artifact: Path, image: np.ndarray) -> None:
    """They share workers, and each thread has as many as its model."""
    import tvm_ffi

    pool_size = tvm_ffi.get_global_func("tvm_edge.pool.threads")
    meet = threading.Barrier(2)

    def sizes(num_threads: int) -> list[int]:
        model = tvm_edge.load(artifact, num_threads=num_threads)
        found = []
        for _ in range(5):
            meet.wait()
            model.run({"data": image})
            found.append(pool_size())
        return found

    assert at_once(lambda: sizes(1), lambda: sizes(2)) == [[1] * 5, [2] * 5]


def beside(model: tvm_edge.CompiledModel, shape: tuple[int, ...], folder: Path) -> list[bool]:
    name = model.outputs[0].name
    x, y = random_input(shape), random_input(shape, 1)
    expected = model.run({"data": y})[name]
    before = model.export(folder / "before.tvme").read_bytes()

    def asynchronous() -> bool:
        futures = [model.run_async({"data": y}) for _ in range(10)]
        return all(np.array_equal(future.result()[name], expected) for future in futures)

    return at_once(
        checker(model, x, 10),
        checker(model, x, 10, device_outputs=True),
        asynchronous,
        asynchronous,
        lambda: model.benchmark({"data": x}, repeat=5).repeat == 5,
        lambda: len(model.profile(repeat=3).kernels) == len(model.report.kernels),
        lambda: model.export(folder / "during.tvme").read_bytes() == before,
        lambda: model.warmup() is None,
    )


@pytest.mark.parametrize("num_threads", [1, 2])
def test_run_beside_everything_else(tmp_path: Path, num_threads: int) -> None:
    model = tvm_edge.compile(wide_conv(), "llvm", num_threads=num_threads)
    assert all(beside(model, WIDE, tmp_path))


def test_on_a_gpu(gpu: str, tmp_path: Path) -> None:
    models = [tvm_edge.compile(conv_relu(seed), gpu) for seed in range(2)]
    device = tvm.device(gpu, 0)
    inputs = [random_input(SMALL, seed) for seed in range(2)]
    values = [*inputs, *(tvm.runtime.tensor(x, device) for x in inputs)]
    checks = [checker(m, x, 10, device_outputs=d) for m in models for x in values for d in (0, 1)]
    assert all(at_once(*checks))
    assert all(beside(models[0], SMALL, tmp_path))


def test_a_first_run_from_many_threads() -> None:
    """Nothing is loaded before it; whoever comes first must not be in the others' way."""
    model = tvm_edge.compile(conv_relu(), "llvm", num_threads=1)
    x = random_input(SMALL)
    results = at_once(*[lambda: model.run({"data": x})["pooled"]] * 6)
    assert all(np.array_equal(result, results[0]) for result in results)
