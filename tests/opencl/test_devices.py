"""Which devices there are, in which order, and how one is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_edge.opencl
from tests.opencl import programs, support

TOPOLOGY = "cpu,gpu;accelerator,cpu"


@pytest.fixture(scope="module")
def pretended(on_shim: dict[str, object], used: dict[str, Any]) -> dict[str, object]:
    """The environment in which one real device shows up as four."""
    return {
        **on_shim,
        "TVM_EDGE_OPENCL": None,
        "SHIM_TOPOLOGY": TOPOLOGY,
        "SHIM_BASE": used["name"],
    }


def names() -> list[str]:
    """Names of the devices of this process, in TVM's order."""
    found: list[str] = []
    while tvm.opencl(len(found)).exist:
        found.append(tvm.opencl(len(found)).device_name)
    return found


def first_name(selection: str) -> str:
    """What TVM_EDGE_OPENCL=`selection` makes of ``tvm.opencl(0)``; runs before any other use."""
    import os

    os.environ["TVM_EDGE_OPENCL"] = selection
    assert tvm_edge.opencl.status()["selection"] == selection
    return tvm.opencl(0).device_name


def add_one_everywhere(count: int) -> None:
    """The same function on each device, then tensors from device to device."""
    values = support.ramp(programs.N)
    chain = tvm.runtime.tensor(values, tvm.opencl(0))
    for i in range(count):
        device = tvm.opencl(i)
        a = tvm.runtime.tensor(values * (i + 1), device)
        b = tvm.runtime.empty(values.shape, "float32", device)
        programs.add_one()(a, b)
        np.testing.assert_array_equal(b.numpy(), values * (i + 1) + 1)
        chain = chain.copyto(tvm.opencl((i + 1) % count))
    np.testing.assert_array_equal(chain.numpy(), values)


def test_status_lists_the_device_in_use(device: Any) -> None:
    status = tvm_edge.opencl.status()
    assert status["error"] == ""
    assert status["library"]
    used = [d for d in status["devices"] if d["used"]]
    assert used and used[0]["name"] == device.device_name
    assert {d["type"] for d in status["devices"]} <= {"gpu", "accelerator", "cpu", "custom"}


def test_gpus_come_first_and_cpus_last(pretended: dict[str, object]) -> None:
    with support.worker(pretended) as run:
        assert run(names) == ["shim gpu 1", "shim accelerator 2", "shim cpu 0", "shim cpu 3"]
        types = [d["type"] for d in run(tvm_edge.opencl.status)["devices"]]
        assert types == ["gpu", "accelerator", "cpu", "cpu"]
        run(add_one_everywhere, 4)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("1:", "shim accelerator 2"),
        ("0:0", "shim cpu 0"),
        ("PLATFORM 1:", "shim accelerator 2"),
        ("Platform 1:cpu", "shim cpu 3"),
        (":CPU", "shim cpu 0"),
        (":shim acc", "shim accelerator 2"),
        ("", "shim gpu 1"),
    ],
)
def test_a_selection_decides_what_device_0_is(
    pretended: dict[str, object], selection: str, expected: str
) -> None:
    with support.worker(pretended) as run:
        assert run(first_name, selection) == expected


def test_a_selection_that_fits_nothing_says_what_there_is(pretended: dict[str, object]) -> None:
    with support.worker({**pretended, "TVM_EDGE_OPENCL": ":no such device"}) as run:
        with pytest.raises(RuntimeError, match="no such device"):
            run(add_one_everywhere, 1)
        assert run(names) == []
        assert "no such device" in run(tvm_edge.opencl.status)["error"]


def test_a_device_beyond_the_last_is_refused(device: Any) -> None:
    assert not tvm.opencl(77).exist
    with pytest.raises(RuntimeError, match="77"):
        tvm.runtime.empty((4,), "float32", tvm.opencl(77))


def test_the_library_can_be_named(shim_library: Path, on_shim: dict[str, object]) -> None:
    with support.worker(on_shim) as run:
        assert run(tvm_edge.opencl.status)["library"] == str(shim_library)
        run(add_one_everywhere, 1)
