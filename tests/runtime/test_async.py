"""``run_async``: order, errors, whose memory is whose, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper

import tvm_edge
from tests.onnx_models import conv_relu, make_model, random_input
from tests.runtime.support import held_up, in_forked_child, run_python, wide_conv
from tvm_edge import InputError, opencl

WIDE = (1, 32, 56, 56)


def wide_inputs(count: int) -> list[np.ndarray]:
    return [random_input(WIDE, seed) for seed in range(count)]


@pytest.mark.parametrize("device_outputs", [False, True])
def test_results_come_in_order(compiled_wide: tvm_edge.CompiledModel, device_outputs: bool) -> None:
    inputs = wide_inputs(8)
    expected = [compiled_wide.run({"data": x})["result"] for x in inputs]
    finished: list[int] = []
    futures = []
    for i, x in enumerate(inputs):
        future = compiled_wide.run_async({"data": x}, device_outputs=device_outputs)
        future.add_done_callback(lambda _future, i=i: finished.append(i))
        futures.append(future)
    for future, outcome in zip(futures, expected, strict=True):
        result = future.result()["result"]
        assert isinstance(result, tvm.runtime.Tensor) == device_outputs
        np.testing.assert_array_equal(result.numpy() if device_outputs else result, outcome)
    compiled_wide.run_async({"data": inputs[0]}).result()  # the last callback ran before this one
    assert finished == list(range(8))


def test_some_outputs(compiled_wide: tvm_edge.CompiledModel) -> None:
    x = random_input(WIDE)
    assert list(compiled_wide.run_async({"data": x}, outputs=["result"]).result()) == ["result"]
    assert compiled_wide.run_async({"data": x}, outputs=[]).result() == {}


BAD: dict[str, Callable[[np.ndarray], tuple[Any, Any]]] = {
    "name": lambda x: ({"dta": x}, None),
    "shape": lambda x: ({"data": x[0]}, None),
    "type": lambda x: ({"data": x.astype("float64")}, None),
    "output": lambda x: ({"data": x}, ["rsult"]),
    "string": lambda x: ({"data": x}, "result"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_inputs_are_refused_at_once(compiled_wide: tvm_edge.CompiledModel, case: str) -> None:
    inputs, outputs = BAD[case](random_input(WIDE))
    with pytest.raises(InputError):
        compiled_wide.run_async(inputs, outputs=outputs)


@pytest.mark.parametrize("kind", ["numpy", "aligned", "tvm"])
def test_host_data_may_be_used_again_at_once(
    compiled_wide: tvm_edge.CompiledModel, kind: str
) -> None:
    inputs = wide_inputs(6)
    expected = [compiled_wide.run({"data": x})["result"] for x in inputs]
    tensor = tvm.runtime.empty(WIDE, "float32")
    frame = np.empty(WIDE, "float32") if kind == "numpy" else np.from_dlpack(tensor)
    futures = []
    for x in inputs:
        frame[:] = x
        futures.append(compiled_wide.run_async({"data": tensor if kind == "tvm" else frame}))
    frame[:] = np.nan
    for future, outcome in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result()["result"], outcome)


def test_on_a_gpu(gpu: str) -> None:
    model = tvm_edge.compile(conv_relu(), gpu)
    inputs = [random_input((1, 3, 16, 16), seed) for seed in range(6)]
    tensors = [tvm.runtime.tensor(x, tvm.device(gpu, 0)) for x in inputs]
    expected = [model.run({"data": x})["pooled"] for x in inputs]
    for values in (inputs, tensors):
        futures = [model.run_async({"data": x}) for x in values]
        for future, outcome in zip(futures, expected, strict=True):
            np.testing.assert_array_equal(future.result()["pooled"], outcome)


def test_what_fails_in_the_run_comes_from_the_future(gpu: str) -> None:
    """Here a kernel is refused a tensor that the host is looking at."""
    if gpu != "opencl":
        pytest.skip("only OpenCL tensors have host views")
    model = tvm_edge.compile(conv_relu(), gpu)
    x = tvm.runtime.tensor(random_input((1, 3, 16, 16)), tvm.opencl())
    expected = model.run({"data": x})["pooled"]
    try:
        view = opencl.host_view(x)
    except ValueError:
        pytest.skip("the device has memory of its own")
    bad = model.run_async({"data": x})
    good = model.run_async({"data": x.numpy()})
    with pytest.raises(RuntimeError, match="view"):
        bad.result()
    del view
    np.testing.assert_array_equal(good.result()["pooled"], expected)
    np.testing.assert_array_equal(model.run({"data": x})["pooled"], expected)


def test_with_asyncio(compiled_wide: tvm_edge.CompiledModel) -> None:
    inputs = wide_inputs(4)

    async def gather() -> list[Any]:
        futures = [compiled_wide.run_async({"data": x}) for x in inputs]
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    for x, outputs in zip(inputs, asyncio.run(gather()), strict=True):
        np.testing.assert_array_equal(outputs["result"], compiled_wide.run({"data": x})["result"])


def test_python_goes_on_meanwhile() -> None:
    """With the interpreter's lock held, this thread would stand still for the whole run."""
    # One kernel: TVM lets other threads in between two of them anyway.
    node = helper.make_node("Conv", ["x", "weight"], ["y"], pads=[2] * 4)
    weight = np.zeros((64, 64, 5, 5), "float32")
    heavy = make_model([node], {"x": (1, 64, 160, 160)}, ["y"], {"weight": weight})
    model = tvm_edge.compile(heavy, "llvm", num_threads=1)
    inputs = {"x": np.zeros((1, 64, 160, 160), "float32")}

    def whole_run() -> float:
        started = time.perf_counter()
        model.run(inputs)
        return time.perf_counter() - started

    def longest_stop() -> float:
        future = model.run_async(inputs)
        longest, last = 0.0, time.perf_counter()
        while not future.done():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return max(longest, time.perf_counter() - last)

    # The operating system stops a thread as well, on a busy machine for tens of milliseconds.
    took = min(whole_run() for _ in range(2))
    assert median(longest_stop() for _ in range(3)) < took / 2


def test_a_future_can_be_cancelled(
    compiled_wide: tvm_edge.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random_input(WIDE)
    with held_up(monkeypatch) as may_run:
        first, *waiting = [compiled_wide.run_async({"data": x}) for _ in range(4)]
        assert waiting[1].cancel()
        may_run.set()
        for future in (first, waiting[0], waiting[2]):
            assert future.result()["result"].any()
    assert waiting[1].cancelled()


def test_a_dropped_model_finishes_and_its_thread_ends() -> None:
    model = tvm_edge.compile(wide_conv(), "llvm", num_threads=2)
    x = random_input(WIDE)
    expected = model.run({"data": x})["result"]
    others = set(threading.enumerate())
    futures = [model.run_async({"data": x}) for _ in range(5)]
    (worker,) = set(threading.enumerate()) - others
    del model
    gc.collect()
    for future in futures:
        np.testing.assert_array_equal(future.result()["result"], expected)
    worker.join(timeout=10)
    assert not worker.is_alive()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own(compiled_wide: tvm_edge.CompiledModel) -> None:
    inputs = {"data": random_input(WIDE)}
    compiled_wide.run_async(inputs).result()
    outcome = in_forked_child(lambda: compiled_wide.run_async(inputs).result())
    assert outcome == "done"


@pytest.fixture(scope="module")
def wide_artifact(
    compiled_wide: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return compiled_wide.export(tmp_path_factory.mktemp("async") / "wide.tvme")


EXIT = """
import sys
import numpy as np
import tvm_edge

kept, dropped = (tvm_edge.load(sys.argv[1], num_threads=1) for _ in range(2))
x = np.ones((1, 32, 56, 56), "float32")
for name, model in (("kept", kept), ("dropped", dropped)):
    for i in range(20):
        future = model.run_async({"data": x})
        line = f"{name} {i} "
        future.add_done_callback(lambda f, line=line: sys.stdout.write(f"{line}{f.exception()}\\n"))
del model, dropped, future
"""


def test_what_waits_is_done_before_the_interpreter_exits(wide_artifact: Path) -> None:
    output = run_python(EXIT, wide_artifact, environment={"TVM_USE_RUNTIME_LIB": "1"})
    for name in ("kept", "dropped"):
        lines = [line for line in output.splitlines() if line.startswith(name)]
        assert lines == [f"{name} {i} None" for i in range(20)]


CONTROL_C = """
import os, signal, sys, threading
import numpy as np
import tvm_edge

model = tvm_edge.load(sys.argv[1], num_threads=1)
x = np.ones((1, 32, 56, 56), "float32")
expected = model.run({"data": x})["result"]
futures = [model.run_async({"data": x}) for _ in range(200)]
threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for future in futures:
        future.result()
    for _ in range(10**9):  # should the machine be fast
        model.run({"data": x})
except KeyboardInterrupt:
    print("interrupted")
futures += [model.run_async({"data": x}) for _ in range(5)]
print(all(np.array_equal(future.result()["result"], expected) for future in futures))
"""


def test_control_c_ends_the_wait_and_not_the_runs(wide_artifact: Path) -> None:
    output = run_python(CONTROL_C, wide_artifact, environment={"TVM_USE_RUNTIME_LIB": "1"})
    assert output.split() == ["interrupted", "True"]
