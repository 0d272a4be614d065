"""Crossings that begin before they are waited for: nothing is waited for that came in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.runtime import Tensor

from tests.opencl import programs
from tests.opencl.support import (
    OUT_OF_HOST_MEMORY,
    Shim,
    copied,
    empty,
    memory_kind,
    ramp,
    settled_memory,
    upload,
)

Run = Callable[..., Any]


WAIT_FOR_HOST = """// Function: wait_for_host
__kernel void wait_for_host(__global volatile int* flag, __global int* left) {
  int rounds = 2147483647;
  while (rounds > 0 && *flag == 0) rounds--;
  *left = rounds;
}
"""


def begin(what: str, tensor: Tensor) -> Any:
    return tvm_ffi.get_global_func(f"vm.builtin.tvm_edge.start_{what}")(tensor)


def finish(what: str, started: Any) -> Tensor:
    return tvm_ffi.get_global_func(f"vm.builtin.tvm_edge.finish_{what}")(started)


def reads() -> None:
    source, tensor, other = upload(ramp(programs.N)), empty((programs.N,)), empty((programs.N,))
    programs.add_one()(source, tensor)
    nbytes = 0 if memory_kind() != "buffer" else 4 * programs.N
    seen: list[Any] = []
    assert copied(lambda: seen.append(begin("read", tensor))) == {"in": 0, "out": nbytes}
    programs.add_one()(tensor, other)  # may read it meanwhile
    view = finish("read", seen.pop())
    assert view.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
    assert view.shape == tensor.shape and view.data_ptr() % 64 == 0
    np.testing.assert_array_equal(view.numpy(), ramp(programs.N) + 1)
    np.testing.assert_array_equal(other.numpy(), ramp(programs.N) + 2)
    del view
    programs.add_one()(other, tensor)
    np.testing.assert_array_equal(finish("read", begin("read", tensor)).numpy(), ramp(64) + 3)


def test_the_host_reads_what_a_kernel_wrote(host_access: Run) -> None:
    host_access(reads)


def reads_of_a_running_kernel() -> None:
    counted = upload(np.zeros(programs.N, "int32"))
    programs.spin()(25_000, counted)
    seen = finish("read", begin("read", counted)).numpy()
    np.testing.assert_array_equal(seen, counted.numpy())


def test_it_waits_for_the_kernel_that_writes(host_access: Run) -> None:
    host_access(reads_of_a_running_kernel)


def crosses_beside_a_kernel(what: str) -> int:
    """Rounds that a kernel enqueued since still had when the access was done."""
    if memory_kind() != "svm-fine":
        return 1  # the host could not tell the kernel
    code = {"wait_for_host": (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))}
    kernel = programs.from_source(WAIT_FOR_HOST, code)["wait_for_host"]
    flag, left = upload(np.zeros(16, "int32")), upload(np.zeros(16, "int32"))
    told = np.from_dlpack(tvm_ffi.get_global_func("vm.builtin.tvm_edge.write_on_host")(flag))
    tensor = upload(ramp(programs.N))
    started = begin(what, tensor)
    kernel(programs.pointer(flag), programs.pointer(left), 1, 1)
    np.testing.assert_array_equal(finish(what, started).numpy(), ramp(programs.N))
    told[:] = 1
    return int(left.numpy()[0])


@pytest.mark.parametrize("what", ["read", "write"])
def test_it_waits_for_nothing_enqueued_since(what: str, host_access: Run) -> None:
    assert host_access(crosses_beside_a_kernel, what) > 0


def given_up() -> dict[str, float]:
    """Count the objects left of copies that begin and do not end."""

    def once() -> None:
        tensor = upload(ramp(1024))
        begin("read", tensor)
        begin("write", tensor)
        np.testing.assert_array_equal(tensor.numpy(), ramp(1024))

    for _ in range(20):
        once()
    before = {**Shim.here().live(), **settled_memory()}
    for _ in range(200):
        once()
    after = {**Shim.here().live(), **settled_memory()}
    return {key: after[key] - before[key] for key in before}


def test_nothing_is_left_of_one_that_does_not_end(host_access: Run) -> None:
    assert set(host_access(given_up).values()) == {0}


def writes() -> None:
    tensor, out = upload(ramp(programs.N)), empty((programs.N,))
    started = begin("write", tensor)
    programs.add_one()(upload(ramp(programs.N)), out)
    written = finish("write", started)
    assert written.shape == tensor.shape and written.data_ptr() % 64 == 0
    np.from_dlpack(written)[:] = ramp(programs.N) * 2
    nbytes = 0 if memory_kind() == "svm-fine" else 4 * programs.N
    hand_over = tvm_ffi.get_global_func("vm.builtin.tvm_edge.hand_over")
    assert copied(lambda: hand_over(written, tensor)) == {"in": nbytes, "out": 0}
    programs.add_one()(tensor, out)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N) * 2 + 1)


def test_a_kernel_reads_what_the_host_wrote(host_access: Run) -> None:
    host_access(writes)


def of_nothing() -> None:
    for what in ("read", "write"):
        assert finish(what, begin(what, empty((0, 4)))).shape == (0, 4)


def test_a_tensor_of_no_elements(host_access: Run) -> None:
    host_access(of_nothing)


def the_driver_fails() -> None:
    call = {"mapped": "clEnqueueMapBuffer", "svm-coarse": "clEnqueueSVMMap"}.get(memory_kind())
    tensor = upload(ramp(64))
    shim = Shim.here()
    if call is not None:
        shim.fail(call, OUT_OF_HOST_MEMORY)
        with pytest.raises(MemoryError, match="mapping a tensor for the host to read"):
            begin("read", tensor)
        shim.clear()
    started = begin("read", tensor)
    if memory_kind() != "svm-fine" or call is None:
        shim.fail("clWaitForEvents", OUT_OF_HOST_MEMORY)
        with pytest.raises(MemoryError, match="waiting for a tensor that the host reads"):
            finish("read", started)
        shim.clear()
    np.testing.assert_array_equal(finish("read", begin("read", tensor)).numpy(), ramp(64))


def test_a_driver_that_fails(host_access: Run) -> None:
    host_access(the_driver_fails)


def test_what_is_refused(device: Any) -> None:
    cpu, there = tvm.runtime.tensor(ramp(16)), upload(ramp(16))
    with pytest.raises(ValueError, match="takes a tensor of a GPU"):
        begin("read", cpu)
    with pytest.raises(ValueError, match="takes an OpenCL tensor"):
        begin("write", cpu)
    with pytest.raises(TypeError, match="finish_read takes what start_read returned"):
        finish("read", begin("write", there))
    with pytest.raises(TypeError, match="finish_write takes what start_write returned"):
        finish("write", begin("read", there))
