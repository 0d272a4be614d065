"""``benchmark`` and ``profile``: figures that agree with each other and with the report."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model
from tests.runtime.support import run_python
from tvm_edge import InputError
from tvm_edge.runtime import KernelTime, Timing


@pytest.fixture(scope="module")
def profile(compiled_small: tvm_edge.CompiledModel) -> tvm_edge.Profile:
    """A profile of the small model."""
    return compiled_small.profile(repeat=3)


def in_order(timing: Timing) -> bool:
    """Return whether the statistics can belong to one set of samples."""
    ordered = [timing.min, timing.median, timing.p90, timing.p99, timing.max]
    return ordered == sorted(ordered) and timing.min <= timing.mean <= timing.max


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50))
def test_statistics(samples: list[float]) -> None:
    timing = Timing.of(samples)
    assert (timing.min, timing.max) == (min(samples), max(samples))
    assert timing.median == pytest.approx(float(np.median(samples)))
    assert timing.mean == pytest.approx(float(np.mean(samples)))
    slack = 1e-9 * timing.max
    ordered = [timing.min, timing.median, timing.p90, timing.p99, timing.max]
    assert all(a <= b + slack for a, b in itertools.pairwise(ordered))


def test_benchmark(compiled_small: tvm_edge.CompiledModel) -> None:
    result = compiled_small.benchmark(warmup=0, repeat=7)
    assert result.repeat == 7
    for timing in (result.device, result.end_to_end):
        assert timing.min > 0
        assert in_order(timing)
    fields = json.loads(json.dumps(result.to_dict()))
    assert fields["end_to_end"]["median"] == result.end_to_end.median
    assert fields["repeat"] == 7
    assert f"{result.end_to_end.median:.3f} ms" in str(result)


def test_a_model_that_has_not_run_is_timed(small_model: onnx.ModelProto) -> None:
    model = tvm_edge.compile(small_model, "llvm")
    assert model.benchmark(warmup=0, repeat=1).device.min > 0


def test_runs_in_a_row(small_model: onnx.ModelProto) -> None:
    """The result is the mean of one run."""
    model = tvm_edge.compile(small_model, "llvm")
    inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.inputs}
    assert model.seconds_in_a_row(inputs, 1) > 0
    start = time.perf_counter()
    mean = model.seconds_in_a_row(inputs, 200)
    assert 0 < 200 * mean <= time.perf_counter() - start
    with pytest.raises(InputError):
        model.seconds_in_a_row({}, 1)


def test_a_single_run_has_no_spread(compiled_small: tvm_edge.CompiledModel) -> None:
    timing = compiled_small.benchmark(repeat=1).device
    assert timing.min == timing.median == timing.p99 == timing.max


@pytest.mark.parametrize(
    ("options", "name"),
    [({"repeat": 0}, "repeat"), ({"repeat": -1}, "repeat"), ({"warmup": -1}, "warmup")],
)
def test_bad_benchmark_options(
    compiled_small: tvm_edge.CompiledModel, options: dict[str, int], name: str
) -> None:
    with pytest.raises(InputError) as caught:
        compiled_small.benchmark(**options)
    assert caught.value.name == name
    assert caught.value.got == str(options[name])


@pytest.mark.parametrize("repeat", [0, -1])
def test_bad_profile_options(compiled_small: tvm_edge.CompiledModel, repeat: int) -> None:
    with pytest.raises(InputError) as caught:
        compiled_small.profile(repeat=repeat)
    assert caught.value.name == "repeat"


def test_inputs_are_checked_and_used(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray
) -> None:
    for method in (compiled_small.benchmark, compiled_small.profile):
        assert method({"data": image}, repeat=1)
        with pytest.raises(InputError):
            method({"dta": image}, repeat=1)


def test_profile_rows_are_the_kernels_of_the_report(
    compiled_small: tvm_edge.CompiledModel, profile: tvm_edge.Profile
) -> None:
    def identity(kernel: Any) -> tuple[str, tuple[str, ...], str, str]:
        return kernel.name, kernel.operators, kernel.device, kernel.origin

    rows, expected = profile.kernels, compiled_small.report.kernels
    assert [identity(row) for row in rows] == [identity(kernel) for kernel in expected]
    assert {operator for row in rows for operator in row.operators} == {"conv", "relu", "pool"}


def test_profile_figures_are_consistent(
    compiled_small: tvm_edge.CompiledModel, profile: tvm_edge.Profile
) -> None:
    assert profile.total_us > 0
    # A kernel's median and the total's come from different runs: their sum may pass 1 a little.
    assert 0 < sum(row.share for row in profile.kernels) <= 1.1
    starts = [row.start_us for row in profile.kernels]
    assert starts == sorted(starts)
    for row, kernel in zip(profile.kernels, compiled_small.report.kernels, strict=True):
        assert row.time_us > 0
        assert row.share == pytest.approx(row.time_us / profile.total_us)
        assert row.gflops * row.time_us * 1e3 == pytest.approx(kernel.flops)
        assert row.gbs * row.time_us * 1e3 == pytest.approx(kernel.bytes)


def test_table_lists_every_kernel(profile: tvm_edge.Profile) -> None:
    table = profile.table()
    assert all(row.name in table for row in profile.kernels)
    longest: KernelTime = max(profile.kernels, key=lambda row: row.time_us)
    top = profile.table(1)
    assert [row.name for row in profile.kernels if row.name in top] == [longest.name]


def test_to_dict_is_json(profile: tvm_edge.Profile) -> None:
    fields = json.loads(json.dumps(profile.to_dict()))
    assert fields["total_us"] == profile.total_us
    assert [row["name"] for row in fields["kernels"]] == [row.name for row in profile.kernels]


def test_chrome_trace(profile: tvm_edge.Profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profile.to_chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events] == [row.name for row in profile.kernels]
    for event, row in zip(events, profile.kernels, strict=True):
        assert event["ph"] == "X"  # a complete event: a start and a duration in microseconds
        assert (event["ts"], event["dur"]) == (row.start_us, row.time_us)


def test_a_kernel_launched_twice_has_two_rows() -> None:
    """Equal layers share a function; each launch is timed."""
    nodes = [
        helper.make_node("Conv", [f"x{i}", "weight"], [f"x{i + 1}"], name=f"conv{i}")
        for i in range(2)
    ]
    weight = np.ones((4, 4, 1, 1), "float32")
    model = make_model(nodes, {"x0": (1, 4, 8, 8)}, ["x2"], {"weight": weight})
    compiled = tvm_edge.compile(model, "llvm")
    rows = compiled.profile(repeat=2).kernels
    launches = [operator for row in rows for operator in row.operators]
    assert launches == ["conv0", "conv1"]
    assert [row.name for row in rows] == [kernel.name for kernel in compiled.report.kernels]


_CONTROL = """
<ir_version: 8, opset_import: ["" : 17]>
control (int64 n, bool c, float[4,5] x) => (float[4,5] y)
{
    first = Exp (x)
    chosen = If (c) <
        then_branch = g1 () => (float[4,5] t) { t = Sin (first) },
        else_branch = g2 () => (float[4,5] e) { e1 = Cos (first)  e = Softmax (e1) }
    >
    s = Loop (n, , chosen) <body = step (int64 i, bool go, float[4,5] v) => (bool on, float[4,5] w)
        { w = Softmax <axis = 0> (v)  on = Identity (go) }>
    y = Tanh (s)
}
"""


_KINDS = ("exp", "sin", "cos", "softmax", "tanh")


def _kind(row: KernelTime) -> str:
    return row.name.rpartition("_")[2].rstrip("01")


@pytest.mark.parametrize("taken", [True, False])
def test_branches_and_loops(taken: bool) -> None:
    """A branch that is not taken has no row, the steps of a loop have one."""
    compiled = tvm_edge.compile(onnx.parser.parse_model(_CONTROL), "llvm")
    x = np.ones((4, 5), "float32")
    rows = {}
    for steps in (0, 1, 40):
        inputs = {"n": np.asarray(steps), "c": np.asarray(taken), "x": x}
        found = compiled.profile(inputs, repeat=3).kernels
        rows[steps] = [row for row in found if _kind(row) in _KINDS]
    names = {n: [_kind(row) for row in rows[n]] for n in rows}
    branch = ["sin"] if taken else ["cos", "softmax"]
    assert names[0] == ["exp", *branch, "tanh"]
    assert names[1] == names[40] == ["exp", *branch, "softmax", "tanh"]
    once, often = (rows[n][-2].time_us for n in (1, 40))
    assert often > 5 * once


def test_profiling_leaves_the_model_as_it_was(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray
) -> None:
    before = compiled_small.run({"data": image})["pooled"]
    compiled_small.profile(repeat=1)
    np.testing.assert_array_equal(compiled_small.run({"data": image})["pooled"], before)


INTERRUPTED = """
import os, signal, sys, threading
import numpy as np
import tvm_edge

model = tvm_edge.load(sys.argv[1])
inputs = {"data": np.ones((1, 3, 16, 16), "float32")}
expected = model.run(inputs)["pooled"]
outcomes = set()

def interrupt(delay, done):
    while not done.wait(delay):
        os.kill(os.getpid(), signal.SIGINT)
        delay = 5  # should one be lost, do as a user does

for i in range(20):
    done = threading.Event()
    sender = threading.Thread(target=interrupt, args=(0.03 + i / 1000, done))
    try:
        sender.start()
        getattr(model, sys.argv[2])(repeat=10**9)
    except BaseException as err:
        outcomes.add(type(err).__name__)
    done.set()
    sender.join()
outcomes.add(bool((model.run(inputs)["pooled"] == expected).all()))
outcomes.add(model.profile(repeat=1).kernels[0].name == model.report.kernels[0].name)
print(outcomes)
"""


@pytest.mark.parametrize("method", ["benchmark", "profile"])
def test_control_c_ends_a_measurement_and_nothing_else(artifact: Path, method: str) -> None:
    """In a child: an exception thrown into the virtual machine can corrupt its heap."""
    output = run_python(INTERRUPTED, artifact, method, environment={"TVM_USE_RUNTIME_LIB": "1"})
    assert output.strip() in ("{'KeyboardInterrupt', True}", "{True, 'KeyboardInterrupt'}")


def test_a_model_without_kernels() -> None:
    model = make_model([helper.make_node("Identity", ["x"], ["y"])], {"x": (2,)}, ["y"])
    compiled = tvm_edge.compile(model, "llvm")
    profile = compiled.profile(repeat=1)
    assert profile.kernels == ()
    assert "100.0% outside kernels" in profile.table()
    assert compiled.benchmark(repeat=1).end_to_end.min > 0
