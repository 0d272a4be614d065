"""One device, one module, many threads."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import (
    DEFAULT_STREAM,
    THREADS,
    empty,
    in_threads,
    ramp,
    settled_memory,
    upload,
)

LAUNCHES = 1000


def test_eight_threads_of_a_thousand_launches(device: Any) -> None:
    run = programs.add_one()["main"]

    def body(index: int) -> None:
        a, b = upload(ramp(programs.N) + index), empty((programs.N,))
        for _ in range(LAUNCHES // 2):
            run(a, b)
            run(b, a)
        np.testing.assert_array_equal(a.numpy(), ramp(programs.N) + index + LAUNCHES)

    body(0)
    before = settled_memory()
    in_threads(body)
    after = settled_memory()
    assert (after["in_use"], after["live"]) == (before["in_use"], before["live"])


def test_threads_that_allocate_copy_and_free(device: Any) -> None:
    run = programs.add_n()["main"]
    before = settled_memory()

    def body(index: int) -> None:
        for i in range(60):
            n = 16 * (1 + (7 * i + index) % 40)
            a, b = upload(ramp(n) + i), empty((n,))
            run(a, b)
            view = b._create_view((16,), relative_byte_offset=0)
            np.testing.assert_array_equal(b.numpy(), ramp(n) + i + 1)
            np.testing.assert_array_equal(view.numpy(), ramp(16) + i + 1)

    in_threads(body)
    after = settled_memory()
    assert (after["in_use"], after["live"]) == (before["in_use"], before["live"])


def test_threads_that_ask_for_a_new_kernel_at_once(device: Any) -> None:
    """Whoever comes first builds; it is built once."""
    built = tvm_edge.opencl.program_stats()["built"]
    call = programs.add_one_from_source("first_for_all")

    def body(index: int) -> None:
        a, b = upload(ramp(programs.N) + index), empty((programs.N,))
        call(a, b, 4, programs.THREADS)
        np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + index + 1)

    in_threads(body)
    assert tvm_edge.opencl.program_stats()["built"] == built + 1


def test_a_stream_for_each_thread(device: Any) -> None:
    run = programs.add_one()["main"]
    streams = [device.create_raw_stream() for _ in range(THREADS)]

    def body(index: int) -> None:
        device.set_raw_stream(streams[index])
        a, b = upload(ramp(programs.N) + index), empty((programs.N,))
        for _ in range(100):
            run(a, b)
            run(b, a)
        device.sync(streams[index])
        np.testing.assert_array_equal(a.numpy(), ramp(programs.N) + index + 200)
        device.set_raw_stream(DEFAULT_STREAM)

    in_threads(body)
    for stream in streams:
        device.free_raw_stream(stream)


def test_profiling_while_threads_launch(device: Any) -> None:
    run = programs.add_one()["main"]
    tvm_edge.opencl.profile_start()

    def body(index: int) -> None:
        a, b = upload(ramp(programs.N) + index), empty((programs.N,))
        for _ in range(50):
            run(a, b)

    in_threads(body)
    records = tvm_edge.opencl.profile_stop()
    assert sum(r["kind"] == "kernel" for r in records) == THREADS * 50
