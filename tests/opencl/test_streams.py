"""Several command queues of one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tvm.runtime import _ffi_api

from tests.opencl import programs
from tests.opencl.support import DEFAULT_STREAM, Shim, Worker, empty, ramp, upload

LONG = 50_000
"""Rounds of `spin` that take some hundred microseconds at the least."""


@pytest.fixture
def streams(device: Any) -> Iterator[tuple[Any, Any]]:
    """Two streams; the default one is set again afterwards."""
    made = device.create_raw_stream(), device.create_raw_stream()
    yield made
    device.set_raw_stream(DEFAULT_STREAM)
    for stream in made:
        device.free_raw_stream(stream)


def spun(rounds: int) -> np.ndarray:
    """What `spin` makes of zeros, worked out by the host."""
    value = np.uint32(0)
    for _ in range(rounds):
        value = np.uint32((int(value) * 1103515245 + 12345) & 0xFFFFFFFF)
    return np.full(programs.N, value, "uint32").view("int32")


def test_work_in_two_streams(device: Any, streams: tuple[Any, Any]) -> None:
    run = programs.add_one()["main"]
    pairs = [(upload(np.zeros(programs.N, "float32")), empty((programs.N,))) for _ in streams]
    for _ in range(100):
        for stream, (a, b) in zip(streams, pairs, strict=True):
            device.set_raw_stream(stream)
            run(a, b)
            run(b, a)
    for stream, (a, _) in zip(streams, pairs, strict=True):
        device.sync(stream)
        np.testing.assert_array_equal(a.numpy(), np.full(programs.N, 200, "float32"))


def test_one_stream_waits_for_another(device: Any, streams: tuple[Any, Any]) -> None:
    """One work-group each, so that a second one would find an idle core."""
    first, second = streams
    spin = programs.spin(programs.THREADS)["main"]
    values = upload(np.zeros(programs.THREADS, "int32"))
    spin(1, values)
    device.sync()
    device.set_raw_stream(first)
    spin(20 * LONG, values)
    _ffi_api.Device_StreamSyncFromTo(device, first, second)
    device.set_raw_stream(second)
    spin(20 * LONG - 1, values)
    device.sync(second)
    device.set_raw_stream(DEFAULT_STREAM)
    expected = upload(np.zeros(programs.THREADS, "int32"))
    spin(40 * LONG, expected)
    np.testing.assert_array_equal(values.numpy(), expected.numpy())


def test_spin_counts_its_rounds(device: Any) -> None:
    values = upload(np.zeros(programs.N, "int32"))
    programs.spin()(1000, values)
    np.testing.assert_array_equal(values.numpy(), spun(1000))


def test_sync_is_enough_to_read(device: Any, streams: tuple[Any, Any]) -> None:
    device.set_raw_stream(streams[0])
    values = upload(np.zeros(programs.N, "int32"))
    programs.spin()(LONG, values)
    device.sync(streams[0])
    device.set_raw_stream(DEFAULT_STREAM)
    out = empty((programs.N,), "int32")
    values.copyto(out)
    assert out.numpy().any()


def test_memory_freed_in_one_stream_and_taken_in_another(
    device: Any, streams: tuple[Any, Any]
) -> None:
    """A block that goes back to the pool may still be read by the stream it was used in.

    No copy in the second stream: a copy waits for all streams anyway.
    """
    first, second = streams
    blocks = [empty((programs.N,)) for _ in range(4)]
    programs.fill("float32")(-1.0, blocks[0])
    del blocks
    device.set_raw_stream(first)
    out = empty((programs.N,))
    slow = upload(np.zeros(programs.N, "int32"))
    a = upload(ramp(programs.N))
    programs.spin()(20 * LONG, slow)
    programs.add_one()(a, out)
    del a
    device.set_raw_stream(second)
    taken = [empty((programs.N,)) for _ in range(4)]
    for tensor in taken:
        programs.fill("float32")(-1.0, tensor)
    device.sync(second)
    device.sync(first)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N) + 1)
    assert all((tensor.numpy() == -1).all() for tensor in taken)


def test_a_freed_stream_is_refused(device: Any) -> None:
    stream = device.create_raw_stream()
    device.free_raw_stream(stream)
    with pytest.raises(ValueError, match="stream"):
        device.sync(stream)


def stream_life() -> tuple[int, int]:
    """Live queues with 20 streams, then without them."""
    import tvm

    device = tvm.opencl(0)
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one()(a, b)
    shim = Shim.here()
    before = shim["queues"]
    streams = [device.create_raw_stream() for _ in range(20)]
    for stream in streams:
        device.set_raw_stream(stream)
        programs.add_one()(a, b)
    with_streams = shim["queues"] - before
    device.set_raw_stream(DEFAULT_STREAM)
    for stream in streams:
        device.free_raw_stream(stream)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)
    return with_streams, shim["queues"] - before


def test_freed_streams_give_their_queues_back(shimmed: Worker) -> None:
    assert shimmed(stream_life) == (20, 0)
