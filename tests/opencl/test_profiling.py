"""The profiling hooks: what ran, and when."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import DEFAULT_STREAM, Shim, Worker, empty, ramp, upload


def test_kernels_and_copies_with_their_times(device: Any) -> None:
    module = programs.two_kernels()
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    tvm_edge.opencl.profile_start()
    module["main"](a, b)
    module["twice"](b, a)
    module["main"](a, b)
    a.copyto(b)
    device.sync()
    records = tvm_edge.opencl.profile_stop()
    kernels = [r for r in records if r["kind"] == "kernel"]
    assert [r["name"] for r in kernels] == ["main_kernel", "twice_kernel", "main_kernel"]
    assert {r["kind"] for r in records} <= {"kernel", "copy"}
    for record in records:
        assert record["queued"] <= record["submitted"] <= record["start"] <= record["end"]
    starts = [r["start"] for r in kernels]
    assert starts == sorted(starts)
    np.testing.assert_array_equal(b.numpy(), (ramp(programs.N) + 1) * 2)


def test_copies_of_plain_buffers_are_recorded(shimmed_buffers: Worker) -> None:
    copies = shimmed_buffers(profiled_copies)
    assert len(copies) == 3
    assert all(r["end"] >= r["start"] for r in copies)


@pytest.fixture(scope="module")
def shimmed_buffers(on_shim: dict[str, object]) -> Any:
    """A worker whose tensors are plain buffers, so that each copy is a command."""
    from tests.opencl.support import worker

    with worker({**on_shim, "TVM_EDGE_OPENCL_MEMORY": "buffer"}) as started:
        yield started


def profiled_copies() -> list[dict[str, Any]]:
    """The records of an upload, a copy on the device and a download."""
    a, b = empty((programs.N,)), empty((programs.N,))
    tvm_edge.opencl.profile_start()
    a.copyfrom(ramp(programs.N))
    a.copyto(b)
    b.numpy()
    return [r for r in tvm_edge.opencl.profile_stop() if r["kind"] == "copy"]


def test_nothing_is_recorded_outside(device: Any) -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one()(a, b)
    tvm_edge.opencl.profile_start()
    assert tvm_edge.opencl.profile_stop() == []
    programs.add_one()(a, b)
    assert tvm_edge.opencl.profile_stop() == []


def test_starting_again_forgets(device: Any) -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    tvm_edge.opencl.profile_start()
    programs.add_one()(a, b)
    programs.add_one()(a, b)
    tvm_edge.opencl.profile_start()
    programs.add_one()(a, b)
    assert [r["kind"] for r in tvm_edge.opencl.profile_stop()] == ["kernel"]


def test_many_commands_are_all_recorded(device: Any) -> None:
    run = programs.add_one()["main"]
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    tvm_edge.opencl.profile_start()
    for _ in range(5000):
        run(a, b)
    records = [r for r in tvm_edge.opencl.profile_stop() if r["kind"] == "kernel"]
    assert len(records) == 5000
    assert all(x["end"] <= y["start"] for x, y in itertools.pairwise(records))


def test_every_stream_is_recorded(device: Any) -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    stream = device.create_raw_stream()
    tvm_edge.opencl.profile_start()
    programs.add_one()(a, b)
    device.sync()
    device.set_raw_stream(stream)
    programs.add_one()(a, b)
    device.set_raw_stream(DEFAULT_STREAM)
    device.free_raw_stream(stream)
    kernels = [r for r in tvm_edge.opencl.profile_stop() if r["kind"] == "kernel"]
    assert len(kernels) == 2


def events_of_ordinary_launches() -> int:
    """Events the driver was asked for in 200 launches that nobody profiles."""
    run = programs.add_one()["main"]
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    run(a, b)
    shim = Shim.here()
    shim.clear()
    for _ in range(200):
        run(a, b)
    return shim["made_events"]


def test_launches_that_nobody_profiles_have_no_events(shimmed: Worker) -> None:
    """An event costs each launch; the bound on launches in flight takes one in some hundred."""
    assert shimmed(events_of_ordinary_launches) <= 4


def events_after_profiling() -> tuple[int, int]:
    """Live events and queues that a second profiling leaves behind; the first may keep a queue."""
    run = programs.add_one()["main"]
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    tvm_edge.opencl.profile_start()
    run(a, b)
    tvm_edge.opencl.profile_stop()
    b.numpy()
    shim = Shim.here()
    before = shim.live()
    tvm_edge.opencl.profile_start()
    for _ in range(100):
        run(a, b)
    tvm_edge.opencl.profile_stop()
    after = shim.live()
    return after["events"] - before["events"], after["queues"] - before["queues"]


def test_profiling_leaves_nothing_behind(shimmed: Worker) -> None:
    assert shimmed(events_after_profiling) == (0, 0)
