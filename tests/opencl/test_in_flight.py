"""Launches in flight are bounded: some drivers fall over where too many wait (Mali)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.opencl import programs
from tests.opencl.support import Shim, empty, ramp, upload, worker


def most_in_flight(launches: int) -> int:
    """The most launches that were queued or running at once."""
    values = upload(np.zeros(programs.N, "int32"))
    programs.spin()(1, values)
    values.numpy()
    shim = Shim.here()
    shim.clear()
    shim["track"] = 1
    for _ in range(launches):
        programs.spin()(25_000, values)
    values.numpy()
    return shim["max_in_flight"]


@pytest.mark.parametrize("bound", [4, 16])
def test_no_more_launches_wait_than_allowed(on_shim: dict[str, object], bound: int) -> None:
    with worker({**on_shim, "TVM_EDGE_OPENCL_IN_FLIGHT": bound}) as run:
        assert 1 <= run(most_in_flight, 60) <= bound


def test_the_host_runs_ahead_where_it_may(on_shim: dict[str, object]) -> None:
    """So that the test above sees a bound and not a device that is faster than the host."""
    with worker({**on_shim, "TVM_EDGE_OPENCL_IN_FLIGHT": None}) as run:
        assert run(most_in_flight, 60) > 16


def launches_on_a_small_driver() -> None:
    """500 launches on a driver that refuses a seventeenth in flight."""
    shim = Shim.here()
    shim["track"] = 1
    shim["queue_limit"] = 16
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    slow = upload(np.zeros(programs.N, "int32"))
    for _ in range(250):
        programs.spin()(5_000, slow)
        programs.add_one()(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_a_driver_with_a_small_queue(on_shim: dict[str, object]) -> None:
    with worker({**on_shim, "TVM_EDGE_OPENCL_IN_FLIGHT": 16}) as run:
        run(launches_on_a_small_driver)
