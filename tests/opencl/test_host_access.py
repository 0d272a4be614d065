"""Tensors that cross between a device and CPU kernels: no copy where both share memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.runtime import Tensor

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import (
    OUT_OF_HOST_MEMORY,
    SANITIZED,
    Shim,
    copied,
    empty,
    memory_kind,
    ramp,
    resident_mib,
    settled_memory,
    upload,
)

Run = Callable[..., Any]


def read_on_host(tensor: Tensor) -> Tensor:
    return tvm_ffi.get_global_func("vm.builtin.tvm_edge.read_on_host")(tensor)


def write_on_host(tensor: Tensor) -> Tensor:
    return tvm_ffi.get_global_func("vm.builtin.tvm_edge.write_on_host")(tensor)


def hand_over(written: Tensor, tensor: Tensor) -> None:
    tvm_ffi.get_global_func("vm.builtin.tvm_edge.hand_over")(written, tensor)


# --------------------------------------------------------------------- from the device to the host


def reads() -> None:
    source, tensor, other = upload(ramp(programs.N)), empty((programs.N,)), empty((programs.N,))
    programs.add_one()(source, tensor)
    seen: list[Tensor] = []
    nbytes = 0 if memory_kind() != "buffer" else 4 * programs.N
    assert copied(lambda: seen.append(read_on_host(tensor))) == {"in": 0, "out": nbytes}
    view = seen.pop()
    assert view.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
    assert view.shape == tensor.shape and view.dtype == tensor.dtype
    np.testing.assert_array_equal(view.numpy(), ramp(programs.N) + 1)
    # Kernels may read what the host reads, launched one by one and together with copies of it.
    for _ in range(2):
        programs.add_one()(tensor, other)
    np.testing.assert_array_equal(other.numpy(), ramp(programs.N) + 2)
    np.testing.assert_array_equal(tensor.numpy(), ramp(programs.N) + 1)
    np.testing.assert_array_equal(view.numpy(), ramp(programs.N) + 1)
    del view
    programs.add_one()(other, tensor)
    np.testing.assert_array_equal(read_on_host(tensor).numpy(), ramp(programs.N) + 3)


def test_the_host_reads_what_a_kernel_wrote(host_access: Run) -> None:
    host_access(reads)


def reads_of_a_running_kernel() -> None:
    counted = upload(np.zeros(programs.N, "int32"))
    programs.spin()(25_000, counted)
    seen = read_on_host(counted).numpy()
    np.testing.assert_array_equal(seen, counted.numpy())


def test_it_waits_for_the_kernel_that_writes(host_access: Run) -> None:
    host_access(reads_of_a_running_kernel)


def reads_behind_another_stream() -> None:
    device = tvm.opencl(0)
    counted = upload(np.zeros(programs.N, "int32"))
    stream = device.create_raw_stream()
    with tvm_ffi.use_raw_stream(device, stream):
        programs.spin()(25_000, counted)
    seen = read_on_host(counted).numpy()
    np.testing.assert_array_equal(seen, counted.numpy())
    device.free_raw_stream(stream)


def test_it_waits_for_other_streams(host_access: Run) -> None:
    host_access(reads_behind_another_stream)


def reads_of_parts() -> None:
    tensor = upload(ramp(1024))
    for offset in (0, 512, 4):
        part = tensor._create_view((4, 8), relative_byte_offset=offset)
        view = read_on_host(part)
        assert view.shape == (4, 8)
        assert view.data_ptr() % 64 == 0  # compiled kernels of the CPU count on it
        expected = ramp(1024)[offset // 4 :][:32]
        np.testing.assert_array_equal(view.numpy().ravel(), expected)
        again = read_on_host(part)  # both at once
        np.testing.assert_array_equal(again.numpy(), view.numpy())


def test_parts_of_a_tensor(host_access: Run) -> None:
    host_access(reads_of_parts)


def reads_nothing() -> None:
    tensor = empty((0, 4))
    assert read_on_host(tensor).shape == (0, 4)
    written = write_on_host(tensor)
    assert written.shape == (0, 4)
    hand_over(written, tensor)


def test_a_tensor_of_no_elements(host_access: Run) -> None:
    host_access(reads_nothing)


def reads_without_the_tensor() -> None:
    tensor = upload(ramp(1024))
    before = settled_memory()["in_use"]
    view = read_on_host(tensor)
    del tensor
    upload(np.zeros(1024, "float32"))  # takes the memory if it is free
    np.testing.assert_array_equal(view.numpy(), ramp(1024))
    kept = settled_memory()["in_use"] == before
    assert kept == (memory_kind() != "buffer")
    del view
    assert settled_memory()["in_use"] < before


def test_a_view_keeps_the_memory(host_access: Run) -> None:
    host_access(reads_without_the_tensor)


def reads_beside_a_host_view() -> None:
    if memory_kind() == "buffer":
        return
    tensor = upload(ramp(64))
    view = tvm_edge.opencl.host_view(tensor)
    np.from_dlpack(view)[:] = 5
    assert (read_on_host(tensor).numpy() == 5).all()


def test_beside_a_host_view(host_access: Run) -> None:
    host_access(reads_beside_a_host_view)


def read_in_threads() -> None:
    tensors = [upload(ramp(4096) + i) for i in range(4)]

    def read(index: int) -> None:
        for _ in range(200):
            np.testing.assert_array_equal(
                read_on_host(tensors[index % 4]).numpy(), ramp(4096) + index % 4
            )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_threads_that_read_the_same(host_access: Run) -> None:
    host_access(read_in_threads)


def map_fails() -> dict[str, int]:
    shim, call = Shim.here(), {"mapped": "clEnqueueMapBuffer", "svm-coarse": "clEnqueueSVMMap"}
    kind = memory_kind()
    if kind not in call:
        return {}
    tensor = upload(ramp(64))
    read_on_host(tensor)
    before = shim.live()
    shim.fail(call[kind], OUT_OF_HOST_MEMORY)
    with pytest.raises(MemoryError, match="mapping a tensor for the host to read"):
        read_on_host(tensor)
    shim.clear()
    np.testing.assert_array_equal(read_on_host(tensor).numpy(), ramp(64))
    tensor.numpy()
    after = shim.live()
    return {key: after[key] - before[key] for key in before}


def test_a_driver_that_does_not_map(host_access: Run) -> None:
    assert set(host_access(map_fails).values()) <= {0}


# --------------------------------------------------------------------- from the host to the device


def writes() -> None:
    tensor, out = upload(ramp(programs.N)), empty((programs.N,))
    nbytes = 0 if memory_kind() == "svm-fine" else 4 * programs.N
    for factor in (2, 3):
        written = write_on_host(tensor)
        assert written.shape == tensor.shape and written.dtype == tensor.dtype
        assert written.data_ptr() % 64 == 0
        np.from_dlpack(written)[:] = ramp(programs.N) * factor
        assert copied(lambda: hand_over(written, tensor)) == {"in": nbytes, "out": 0}  # noqa: B023
        programs.add_one()(tensor, out)
        # The host may read it again, now as well as later.
        np.testing.assert_array_equal(written.numpy(), ramp(programs.N) * factor)
        np.testing.assert_array_equal(out.numpy(), ramp(programs.N) * factor + 1)
        np.testing.assert_array_equal(written.numpy(), ramp(programs.N) * factor)


def test_a_kernel_reads_what_the_host_wrote(host_access: Run) -> None:
    host_access(writes)


def writes_over_a_running_kernel() -> None:
    counted = upload(np.zeros(programs.N, "int32"))
    programs.spin()(25_000, counted)
    written = write_on_host(counted)
    np.from_dlpack(written)[:] = -1
    hand_over(written, counted)
    assert (counted.numpy() == -1).all()


def test_it_waits_for_the_kernels_before(host_access: Run) -> None:
    host_access(writes_over_a_running_kernel)


def writes_a_part() -> None:
    tensor = upload(ramp(1024))
    for offset in (512, 4):
        part = tensor._create_view((4, 8), relative_byte_offset=offset)
        written = write_on_host(part)
        assert written.data_ptr() % 64 == 0
        np.from_dlpack(written)[:] = -1
        hand_over(written, part)
    expected = ramp(1024)
    expected[128:160] = expected[1:33] = -1
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_a_part_is_written(host_access: Run) -> None:
    host_access(writes_a_part)


def hands_over_another() -> None:
    tensor, other = upload(ramp(64)), upload(ramp(64))
    write_on_host(other)
    hand_over(tvm.runtime.tensor(ramp(64) * 2), tensor)
    np.testing.assert_array_equal(tensor.numpy(), ramp(64) * 2)
    np.testing.assert_array_equal(other.numpy(), ramp(64))


def test_what_lies_elsewhere_is_copied(host_access: Run) -> None:
    host_access(hands_over_another)


# ------------------------------------------------------------------------ both


def test_other_tensors_are_refused(device: Any) -> None:
    cpu = tvm.runtime.tensor(ramp(16))
    for call in (read_on_host, write_on_host, lambda tensor: hand_over(tensor, tensor)):
        with pytest.raises(ValueError, match="takes an OpenCL tensor"):
            call(cpu)


def cross_often() -> dict[str, float]:
    """Growth of everything over many accesses."""
    tensor, out = empty((programs.N,)), empty((programs.N,))

    def once() -> None:
        written = write_on_host(tensor)
        np.from_dlpack(written)[:] = 1
        hand_over(written, tensor)
        programs.add_one()(tensor, out)
        assert read_on_host(out).numpy()[-1] == 2

    for _ in range(200):
        once()
    shim = Shim.here()
    before = {**shim.live(), **settled_memory(), "resident": resident_mib()}
    for _ in range(2000):
        once()
    out.numpy()
    after = {**shim.live(), **settled_memory(), "resident": resident_mib()}
    return {key: after[key] - before[key] for key in before}


def test_nothing_grows(host_access: Run) -> None:
    grown = host_access(cross_often)
    assert grown.pop("resident") < 2 or SANITIZED
    assert set(grown.values()) == {0}, grown
