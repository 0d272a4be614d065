"""Times come from the device's own clock."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import empty, ramp, upload

ROUNDS = 8_000


def seconds_of(rounds: int, *, number: int = 3, repeat: int = 3) -> tuple[list[float], float]:
    """Device seconds of each repeat, and the wall time of it all."""
    values = upload(np.zeros(programs.N, "int32"))
    programs.spin()(rounds, values)
    tvm.opencl(0).sync()
    timer = programs.spin().mod.time_evaluator("main", tvm.opencl(0), number=number, repeat=repeat)
    began = time.perf_counter()
    results = timer(rounds, values).results
    return list(results), time.perf_counter() - began


def test_the_runtime_brings_its_timer(device: Any) -> None:
    assert tvm.get_global_func("runtime.timer.opencl", allow_missing=True) is not None


def test_times_are_the_devices(device: Any) -> None:
    results, wall = seconds_of(ROUNDS)
    assert len(results) == 3
    assert all(value > 0 for value in results)
    # Nothing on the device can take longer than the host waited for it.
    assert 3 * sum(results) <= wall


def test_more_work_takes_longer(device: Any) -> None:
    """20 times the work in more than twice the time: load on the machine does not hide that."""
    few, _ = seconds_of(ROUNDS)
    many, _ = seconds_of(20 * ROUNDS)
    assert min(many) > 2 * min(few)


def test_a_timer_sees_the_work_queued_before_it_as_not_its_own(device: Any) -> None:
    long, _ = seconds_of(50 * ROUNDS, number=1, repeat=1)
    slow = upload(np.zeros(programs.N, "int32"))
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    timer = programs.add_one().mod.time_evaluator("main", tvm.opencl(0), number=1)
    timer(a, b)
    programs.spin()(50 * ROUNDS, slow)
    assert timer(a, b).results[0] < max(long) / 2


def test_results_are_right_after_timing(device: Any) -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one().mod.time_evaluator("main", tvm.opencl(0), number=5)(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_timing_inside_profiling(device: Any) -> None:
    """Both want events of the same commands (upstream's nested_timers)."""
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one()(a, b)
    tvm_edge.opencl.profile_start()
    timer = programs.add_one().mod.time_evaluator("main", tvm.opencl(0), number=4, repeat=2)
    results = timer(a, b).results
    records = [r for r in tvm_edge.opencl.profile_stop() if r["kind"] == "kernel"]
    # One call to warm up, then two repeats of four.
    assert len(records) == 9
    starts, ends = ([r[at] * 1e-9 for r in records] for at in ("start", "end"))
    first, second = (seconds * 4 for seconds in results)
    clock = 1e-6  # the drivers' clocks tick in up to a microsecond
    assert ends[4] - starts[1] - clock <= first <= starts[5] - ends[0] + clock
    assert ends[8] - starts[5] - clock <= second
