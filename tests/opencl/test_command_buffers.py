"""Launches recorded once and replayed as one command, and every way in which that may not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime import Tensor

import tvm_edge.opencl
from tests.opencl import recorded
from tests.opencl.support import (
    MASKED,
    OUT_OF_HOST_MEMORY,
    OUT_OF_RESOURCES,
    Shim,
    Worker,
    in_threads,
    settled_memory,
    upload,
    worker,
)

INVALID_OPERATION, INVALID_COMMAND_QUEUE = -59, -36

needs_extension = pytest.mark.skipif(MASKED, reason="OpenCL 1.2 has no command buffers here")


@pytest.fixture(scope="module", autouse=True)
def extension(device: Any) -> str:
    """Why the driver does not record; skips where it was not asked to pretend anything."""
    missing: str = tvm_edge.opencl.command_buffers()["missing"]
    if missing and not MASKED:
        pytest.skip(missing)
    return missing


class Machine:
    """A virtual machine of the chain, with recordings and weights of its own."""

    def __init__(self, program: relax.VMExecutable | None = None) -> None:
        self.vm = relax.VirtualMachine(program or recorded.recorded_chain(), tvm.opencl(0))
        self.weights: dict[int, list[Tensor]] = {}

    def __call__(self, seed: int, weight: int = 99) -> Tensor:
        """Run on an input of its own."""
        if weight not in self.weights:
            self.weights[weight] = [upload(values) for values in weights(weight)]
        return self.vm["main"](upload(tensor(seed)), *self.weights[weight])


def tensor(seed: int) -> np.ndarray:
    """Small whole numbers: sums and products of them are exact."""
    return np.random.default_rng(seed).integers(-2, 3, (4, 16)).astype("float32")


def weights(number: int) -> list[np.ndarray]:
    """w and v of the chain."""
    return [tensor(1000 + number), tensor(2000 + number)]


def check(
    machine: Machine,
    seeds: range,
    weight: int = 99,
    compute: Callable[..., np.ndarray] = recorded.chain_result,
) -> None:
    """Fresh inputs; results are read when all runs were made."""
    results = [machine(seed, weight) for seed in seeds]
    for seed, result in zip(seeds, results, strict=True):
        np.testing.assert_array_equal(result.numpy(), compute(tensor(seed), *weights(weight)))


def counts_of_runs(runs: int) -> dict[str, Any]:
    """The runtime's counters after so many runs of one machine."""
    check(Machine(), range(runs))
    return tvm_edge.opencl.command_buffers()


@needs_extension
def test_recorded_at_the_first_run_and_replayed(
    run: Callable[..., Any], on_shim: dict[str, object]
) -> None:
    before = run(tvm_edge.opencl.command_buffers)
    after = run(counts_of_runs, 5)
    grown = {key: after[key] - before[key] for key in before if key != "missing"}
    assert grown == {
        "simultaneous": 0,
        "recorded": 2,
        "launches": 4,
        "replayed": 10,
        "plain": 0,
        "failed": 0,
    }


def commands_of_runs(runs: int) -> dict[str, int]:
    """Count the commands that reached the driver."""
    counts_of_runs(1)
    shim = Shim.here()
    shim.clear()
    counts_of_runs(runs)
    return {key: shim[key] for key in ("launches", "recorded", "replays")}


@needs_extension
@pytest.mark.parametrize("memory", ["svm", "buffer"])
def test_what_the_driver_is_told(on_shim: dict[str, object], memory: str) -> None:
    with worker({**on_shim, "TVM_EDGE_OPENCL_MEMORY": memory}) as shimmed:
        # The first and the last launch, and the one that reads the input once more.
        assert shimmed(commands_of_runs, 4) == {"launches": 12, "recorded": 4, "replays": 8}


LACKING: dict[str, tuple[dict[str, object], str]] = {
    "entry points": ({"SHIM_SET": "no_entry_points=1"}, "lacks clCreateCommandBufferKHR"),
    "version": ({"SHIM_SET": "command_buffer_major=2"}, "2.x is newer than known"),
    "queues": ({"SHIM_SET": "only_for_profiling=1"}, "queues with other properties"),
    "switched off": ({"TVM_EDGE_OPENCL_COMMAND_BUFFER": "0"}, "TVM_EDGE_OPENCL_COMMAND_BUFFER=0"),
}


@needs_extension
@pytest.mark.parametrize("what", LACKING)
def test_a_driver_without_it_launches(on_shim: dict[str, object], what: str) -> None:
    """One artifact serves drivers with and without the extension: it is asked for at run time."""
    changes, missing = LACKING[what]
    with worker({**on_shim, **changes}) as shimmed:
        counts = shimmed(counts_of_runs, 3)
        assert missing in counts["missing"]
        assert (counts["recorded"], counts["replayed"], counts["plain"]) == (0, 0, 6)
        assert shimmed(tvm_edge.opencl.recording_failure) == ""


def test_without_opencl_2(extension: str) -> None:
    """In the masked run: no way to extensions, and right all the same."""
    counts = counts_of_runs(3)
    assert bool(counts["missing"]) == MASKED == bool(extension)


@pytest.fixture
def fresh(on_shim: dict[str, object]) -> Iterator[Worker]:
    """A worker of one test: the counters begin at zero."""
    with worker(on_shim) as started:
        yield started


def after_a_failure(call: str, nth: int, code: int) -> tuple[dict[str, Any], list[str], int]:
    """Counters, what is told of the failure, and how many driver objects remain."""
    counts_of_runs(1)
    settled_memory()
    before = Shim.here().live()
    Shim.here().fail(call, code, nth=nth)
    counts = counts_of_runs(3)
    told = [tvm_edge.opencl.recording_failure() for _ in range(2)]
    settled_memory()
    after = Shim.here().live()
    left = sum(after[kind] - before[kind] for kind in ("command_buffers", "kernels", "events"))
    return counts, told, left


@needs_extension
@pytest.mark.parametrize("code", [OUT_OF_RESOURCES, INVALID_COMMAND_QUEUE, INVALID_OPERATION])
@pytest.mark.parametrize(
    ("call", "nth", "what"),
    [
        ("clCreateCommandBufferKHR", 1, "creating a command buffer"),
        ("clCommandNDRangeKernelKHR", 2, "recording kernel '"),
        ("clFinalizeCommandBufferKHR", 2, "finalizing a command buffer"),
        ("clCreateKernel", 1, "creating kernel '"),
    ],
)
def test_a_failure_while_recording(
    fresh: Worker, call: str, nth: int, what: str, code: int
) -> None:
    if call == "clCreateKernel" and code == INVALID_COMMAND_QUEUE:
        pytest.skip("says that the device is lost, recording or not")
    counts, told, left = fresh(after_a_failure, call, nth, code)
    # One region of the second machine was not recorded; the other one, and the first machine's.
    assert (counts["failed"], counts["recorded"], counts["plain"]) == (1, 3, 3)
    assert what in told[0]
    assert told[1] == ""
    assert left == 0


@needs_extension
@pytest.mark.parametrize("code", [INVALID_COMMAND_QUEUE, INVALID_OPERATION])
def test_a_driver_that_refuses_to_replay(fresh: Worker, code: int) -> None:
    counts, told, left = fresh(after_a_failure, "clEnqueueCommandBufferKHR", 3, code)
    # The third replay is the second run's first: that region is launched from there on.
    assert (counts["failed"], counts["recorded"], counts["plain"]) == (1, 4, 2)
    assert "replaying 2 recorded launches" in told[0]
    assert left == 0


def out_of_memory_in_a_replay() -> tuple[str, dict[str, Any]]:
    """Return the error's message, and the counters after a run that works again."""
    machine = Machine()
    check(machine, range(2))
    Shim.here().fail("clEnqueueCommandBufferKHR", OUT_OF_HOST_MEMORY)
    with pytest.raises(MemoryError) as raised:
        machine(2)
    check(machine, range(3, 6))
    return str(raised.value), tvm_edge.opencl.command_buffers()


@needs_extension
def test_a_replay_without_memory_raises(fresh: Worker) -> None:
    """Some of its launches may have run: once more could be wrong where they work in place."""
    message, counts = fresh(out_of_memory_in_a_replay)
    assert "replaying 2 recorded launches failed with CL_OUT_OF_HOST_MEMORY" in message
    assert (counts["failed"], counts["plain"]) == (0, 0)


def many_at_once(runs: int) -> tuple[dict[str, Any], int]:
    """The counters, and how many commands the driver was asked to tell the end of."""
    machine = Machine()
    for _ in range(5):
        check(machine, range(runs))
    return tvm_edge.opencl.command_buffers(), Shim.here()["made_events"]


@needs_extension
@pytest.mark.parametrize("setting", ["one_at_a_time=1", "one_at_a_time=0"])
def test_runs_that_do_not_wait_for_each_other(on_shim: dict[str, object], setting: str) -> None:
    """Where a recording may not be pending twice, its next replay waits for the one before."""
    with worker({**on_shim, "SHIM_SET": setting}) as shimmed:
        counts, events = shimmed(many_at_once, 20)
    assert counts["simultaneous"] == (setting == "one_at_a_time=0")
    assert counts["failed"] == 0
    assert counts["simultaneous"] or events >= counts["replayed"]
    # pocl says that a command buffer is pending for a moment after it has waited for its end.
    assert counts["replayed"] >= (200 if counts["simultaneous"] else 50)
    assert counts["replayed"] + counts["plain"] == 200


@needs_extension
def test_recorded_launches_count_as_in_flight(on_shim: dict[str, object]) -> None:
    """A driver that takes few launches at a time is not sent more in the shape of recordings."""
    with worker({**on_shim, "TVM_EDGE_OPENCL_IN_FLIGHT": "8"}) as shimmed:
        assert shimmed(events_of_runs, 20) >= 40


def events_of_runs(runs: int) -> int:
    """Events asked for in runs of 7 launches that nobody waits for."""
    machine = Machine()
    machine(0)
    shim = Shim.here()
    shim.clear()
    for _ in range(runs):
        machine(0)
    tvm.opencl(0).sync()
    return shim["made_events"]


def test_a_machine_in_each_thread(device: Any) -> None:
    """Each with recordings and memory of its own, on one queue."""
    recorded.recorded_chain()

    def body(index: int) -> None:
        machine = Machine()
        for step in range(5):
            check(machine, range(100 * index + step, 100 * index + step + 10), weight=index)

    in_threads(body)


def drop_machines() -> tuple[dict[str, int], dict[str, int]]:
    """Growth of driver objects and of memory over machines that are recorded and dropped."""

    def some() -> tuple[dict[str, int], dict[str, int]]:
        for number in range(10):
            machine = Machine()
            check(machine, range(number, number + 3))
            machine(0)  # still running when it goes
        del machine
        memory = settled_memory()
        return Shim.here().live(), memory

    before, after = some(), some()
    live, memory = ({key: a[key] - b[key] for key in a} for a, b in zip(after, before, strict=True))
    return live, memory


@needs_extension
def test_all_goes_with_the_machine(fresh: Worker) -> None:
    live, memory = fresh(drop_machines)
    assert set(live.values()) == {0}, live
    assert (memory["in_use"], memory["live"]) == (0, 0)


def test_profiling_reports_every_kernel(device: Any, extension: str) -> None:
    machine = Machine()
    check(machine, range(2))
    before = tvm_edge.opencl.command_buffers()["replayed"]
    tvm_edge.opencl.profile_start()
    check(machine, range(2, 4))
    records = tvm_edge.opencl.profile_stop()
    kernels = [record["name"] for record in records if record["kind"] == "kernel"]
    assert len(kernels) == 2 * 7
    assert tvm_edge.opencl.command_buffers()["replayed"] == before
    check(machine, range(4, 6))
    assert (tvm_edge.opencl.command_buffers()["replayed"] > before) == (not extension)


def test_a_machine_that_is_first_run_while_profiled(device: Any, extension: str) -> None:
    machine = Machine()
    tvm_edge.opencl.profile_start()
    check(machine, range(2))
    assert len([r for r in tvm_edge.opencl.profile_stop() if r["kind"] == "kernel"]) == 14
    before = tvm_edge.opencl.command_buffers()["recorded"]
    check(machine, range(2, 4))
    assert tvm_edge.opencl.command_buffers()["recorded"] - before == (0 if extension else 2)


def test_timed(device: Any) -> None:
    """TVM's timer reads the clock of a queue with profiling."""
    machine = Machine()
    check(machine, range(2))
    timer = machine.vm.time_evaluator("main", tvm.opencl(0), number=3)
    assert timer(upload(tensor(0)), *machine.weights[99]).mean > 0
    check(machine, range(3))


def test_on_a_stream_of_the_callers(device: Any) -> None:
    machine = Machine()
    check(machine, range(2))
    stream = device.create_raw_stream()
    try:
        with tvm_ffi.use_raw_stream(device, stream):
            check(machine, range(2, 5))
    finally:
        device.free_raw_stream(stream)
    check(machine, range(5, 7))


def test_other_weights(device: Any) -> None:
    """A recording for one tensor is not replayed for another."""
    machine = Machine()
    for weight in (1, 2, 1, 3):
        check(machine, range(3), weight)


def test_a_weight_that_the_host_looks_at(device: Any) -> None:
    machine = Machine()
    check(machine, range(2))
    try:
        view = tvm_edge.opencl.host_view(machine.weights[99][1])  # read in recordings alone
    except ValueError:
        pytest.skip("the device has memory of its own")
    with pytest.raises(RuntimeError, match="that the host has a view of"):
        machine(2)
    del view
    check(machine, range(3, 5))


def disturbed(kind: str) -> tuple[dict[str, Any], str]:
    check(Machine(recorded.disturbed_chain(kind)), range(3), compute=recorded.disturbed_result)
    return tvm_edge.opencl.command_buffers(), tvm_edge.opencl.recording_failure()


@needs_extension
@pytest.mark.parametrize(
    ("kind", "what"),
    [("copy", "A copy"), ("allocation", "An allocation"), ("wait", "A wait for the device")],
)
def test_what_a_recording_cannot_hold(fresh: Worker, kind: str, what: str) -> None:
    """A function between the launches that does what a replay would not."""
    counts, told = fresh(disturbed, kind)
    assert (counts["recorded"], counts["failed"], counts["plain"]) == (0, 1, 3)
    assert told == f"{what} between launches that are being recorded"
