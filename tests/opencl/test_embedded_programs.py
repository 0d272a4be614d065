"""Binaries that travel with an artifact: the device they were built on builds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.cache_child import run_both
from tests.opencl.support import empty, ramp, upload, worker

Start = Callable[..., dict[str, int]]


@pytest.fixture(scope="module")
def saved(device: Any) -> bytes:
    """Both adders, built on this device."""
    parts = map(
        tvm_edge.opencl.save_programs, map(programs.load_bytes, programs.two_adders().values())
    )
    data = b"".join(parts)
    if not data:
        pytest.skip("the driver gives out no binaries")
    return data


@pytest.fixture
def start(modules: Path, tmp_path: Path) -> Start:
    """``start(programs, **environment)``: program_stats of a process that was given `programs`."""

    def run(data: bytes, **environment: object) -> dict[str, int]:
        (tmp_path / "programs.bin").write_bytes(data)
        with worker(environment) as process:
            return process(run_both, modules, tmp_path / "programs.bin")

    return run


def test_nothing_is_built_where_programs_came_along(start: Start, saved: bytes) -> None:
    stats = start(saved)
    assert (stats["built"], stats["from_artifact"]) == (0, 2)


def test_programs_of_another_driver_are_not_used(
    start: Start, saved: bytes, on_shim: dict[str, object]
) -> None:
    stats = start(saved, **on_shim, SHIM_SET="stale_driver=1")
    assert (stats["built"], stats["from_artifact"]) == (2, 0)


def test_programs_the_driver_refuses_are_built(
    start: Start, saved: bytes, on_shim: dict[str, object]
) -> None:
    stats = start(saved, **on_shim, SHIM_FAULTS="clCreateProgramWithBinary:1:-1:-42")
    assert (stats["built"], stats["from_artifact"]) == (2, 0)


def test_damaged_programs_are_refused(saved: bytes) -> None:
    for at in (0, 9, len(saved) // 2, len(saved) - 1):
        broken = saved[:at] + bytes([saved[at] ^ 1]) + saved[at + 1 :]
        with pytest.raises(ValueError, match="damaged"):
            tvm_edge.opencl.load_programs(broken)
    for end in (1, 40, len(saved) // 3, len(saved) - 1):
        with pytest.raises(ValueError, match="damaged"):
            tvm_edge.opencl.load_programs(saved[:end])
    tvm_edge.opencl.load_programs(b"")


def test_building_ahead_of_the_first_launch(device: Any) -> None:
    names = ("ahead_0", "ahead_1", "ahead_2")
    code = "\n".join(programs.ADD_ONE_SOURCE.replace("add_one", name) for name in names)
    tags = ("blockIdx.x", "threadIdx.x")
    module = programs.from_source(code, {name: (("handle", "handle"), tags) for name in names})
    before = tvm_edge.opencl.program_stats()["built"]
    tvm_edge.opencl.build(module)
    built = tvm_edge.opencl.program_stats()["built"]
    assert before < built <= before + 3
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    for name in names:
        module[name](programs.pointer(a), programs.pointer(b), 4, programs.THREADS)
        np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)
    assert tvm_edge.opencl.program_stats()["built"] == built


def test_all_opencl_parts_of_a_compiled_module(device: Any) -> None:
    """`save_programs` and `build` take what `tvm.compile` gives, host code and all."""
    tvm_edge.opencl.build(programs.two_kernels().mod)
    assert tvm_edge.opencl.save_programs(programs.two_kernels().mod)
