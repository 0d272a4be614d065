"""What a device and a kernel say of themselves, as targets and schedules need it."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.target import Target

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import MASKED


def test_device_attributes_agree_with_the_driver(device: Any) -> None:
    info = tvm_edge.opencl.device_info()
    assert device.exist
    assert device.device_name == info["name"]
    assert device.max_threads_per_block == info["max_work_group_size"] >= 1
    assert list(device.max_thread_dimensions) == list(info["max_work_item_sizes"])
    assert device.max_shared_memory_per_block == info["local_memory"] >= 16 << 10
    assert device.multi_processor_count == info["compute_units"] >= 1
    assert device.total_global_memory == info["global_memory"] >= info["max_allocation"] // 2
    assert device.max_clock_rate == info["clock_mhz"] * 1000
    assert device.driver_version == info["driver"]
    assert info["native_float_width"] in (1, 2, 4, 8, 16)
    major, minor = map(int, device.compute_version.split("."))
    assert (major, minor) >= (1, 1)
    assert f"{major}.{minor}" in info["version"]


def test_tensors_lie_where_the_device_wants_them(device: Any) -> None:
    info = tvm_edge.opencl.device_info()
    assert info["memory"] in ("svm-fine", "svm-coarse", "mapped", "buffer")
    if info["memory"].startswith("svm"):
        assert info["svm"] != "none"
    if info["memory"] == "buffer":
        assert not info["unified_memory"]


def test_a_warp_is_one_item(device: Any) -> None:
    """TVM puts a barrier into `if (tid < warp)` where it believes in warps; OpenCL forbids that."""
    assert device.warp_size == 1


def test_a_target_can_be_made_from_the_device(device: Any) -> None:
    target = Target.from_device(device)
    assert target.kind.name == "opencl"
    assert int(target.attrs["max_threads_per_block"]) == device.max_threads_per_block
    assert int(target.attrs["max_shared_memory_per_block"]) == device.max_shared_memory_per_block
    assert int(target.attrs["thread_warp_size"]) == 1


def test_a_kernel_has_limits_of_its_own(device: Any) -> None:
    module = programs.device_code(programs.reverse_groups())
    info = tvm_edge.opencl.kernel_info(module, "main_kernel")
    assert programs.THREADS <= info["max_work_group_size"] <= device.max_threads_per_block
    assert info["local_memory"] >= programs.THREADS * 4
    assert info["preferred_multiple"] >= 1
    assert info["private_memory"] >= 0
    assert not any(info["required_work_group_size"])


def test_a_required_work_group_is_reported(device: Any) -> None:
    code = programs.ADD_ONE_SOURCE.replace(
        "__kernel", "__kernel __attribute__((reqd_work_group_size(8, 2, 1)))"
    )
    tags = ("blockIdx.x", "threadIdx.x")
    module = programs.from_source(code, {"add_one": (("handle", "handle"), tags)})
    info = tvm_edge.opencl.kernel_info(module, "add_one")
    assert list(info["required_work_group_size"]) == [8, 2, 1]


def test_an_unknown_kernel_is_named(device: Any) -> None:
    module = programs.device_code(programs.add_one())
    with pytest.raises((ValueError, KeyError, RuntimeError), match="no_such_kernel"):
        tvm_edge.opencl.kernel_info(module, "no_such_kernel")
    assert tvm.opencl(0).exist


@pytest.mark.skipif(not MASKED, reason="asked in the run of test_masked.py")
def test_opencl_12_has_no_shared_virtual_memory(device: Any) -> None:
    info = tvm_edge.opencl.device_info()
    assert info["memory"] in ("buffer", "mapped")
    assert info["svm"] == "none"
    assert "1.2" in info["version"]
