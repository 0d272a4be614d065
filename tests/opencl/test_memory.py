"""Tensors: copies, views, the pool, the counters; in each way this device can allocate."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.runtime import _ffi_api

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import Shim, Worker, empty, memory_kind, ramp, settled_memory, upload

Run = Callable[..., Any]


def copy_there_and_back(dtype: str, n: int) -> None:
    values = (ramp(n) % 113).astype(dtype)
    first = upload(values)
    second = empty((n,), dtype)
    first.copyto(second)
    np.testing.assert_array_equal(second.numpy(), values)
    third = second.copyto(tvm.cpu())
    np.testing.assert_array_equal(third.numpy(), values)
    first.copyfrom(values[::-1].copy())
    np.testing.assert_array_equal(first.numpy(), values[::-1])
    np.testing.assert_array_equal(second.numpy(), values)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [("int8", 1), ("uint8", 3), ("float16", 129), ("float64", 1000), ("float32", 1 << 20)],
)
def test_copies_keep_every_byte(run: Run, dtype: str, n: int) -> None:
    run(copy_there_and_back, dtype, n)


def copy_nothing() -> None:
    for shape in ((0,), (4, 0), (0, 3)):
        first, second = empty(shape), empty(shape)
        first.copyto(second)
        first.copyfrom(np.zeros(shape, "float32"))
        assert first.numpy().shape == shape
        assert first.copyto(tvm.cpu()).numpy().shape == shape


def test_tensors_without_elements(run: Run) -> None:
    run(copy_nothing)


def copy_through_views() -> None:
    values = ramp(1024)
    whole = upload(values)
    for offset in (0, 4, 12, 512, 2048):
        part = whole._create_view((256,), relative_byte_offset=offset)
        np.testing.assert_array_equal(part.numpy(), values[offset // 4 : offset // 4 + 256])
        inner = part._create_view((16,), relative_byte_offset=64)
        np.testing.assert_array_equal(inner.numpy(), values[offset // 4 + 16 : offset // 4 + 32])
    part = whole._create_view((10,), relative_byte_offset=20)
    part.copyfrom(ramp(10) - 100)
    values[5:15] = ramp(10) - 100
    np.testing.assert_array_equal(whole.numpy(), values)
    other = upload(np.zeros(64, "float32"))
    part.copyto(other._create_view((10,), relative_byte_offset=36))
    expected = np.zeros(64, "float32")
    expected[9:19] = ramp(10) - 100
    np.testing.assert_array_equal(other.numpy(), expected)


def test_copies_through_views_with_offsets(run: Run) -> None:
    run(copy_through_views)


def copy_through_views_of_the_host() -> None:
    host = tvm.runtime.tensor(ramp(1024))
    there = empty((100,))
    host._create_view((100,), relative_byte_offset=400).copyto(there)
    np.testing.assert_array_equal(there.numpy(), ramp(1024)[100:200])
    there.copyto(host._create_view((100,), relative_byte_offset=2000))
    expected = ramp(1024)
    expected[500:600] = expected[100:200]
    np.testing.assert_array_equal(host.numpy(), expected)


def test_copies_through_views_of_host_tensors(run: Run) -> None:
    run(copy_through_views_of_the_host)


def copy_within_a_tensor() -> None:
    values = ramp(1024)
    whole = upload(values)
    source = whole._create_view((100,), relative_byte_offset=400)
    source.copyto(whole._create_view((100,), relative_byte_offset=2000))
    values[500:600] = values[100:200]
    np.testing.assert_array_equal(whole.numpy(), values)


def test_a_copy_from_one_part_of_a_tensor_to_another(run: Run) -> None:
    run(copy_within_a_tensor)


def view_outlives_its_tensor() -> None:
    whole = upload(ramp(1024))
    part = whole._create_view((256,), relative_byte_offset=1024)
    del whole
    again = upload(np.zeros(1024, "float32"))
    np.testing.assert_array_equal(part.numpy(), ramp(1024)[256:512])
    assert again.numpy().sum() == 0


def test_a_view_keeps_the_memory(run: Run) -> None:
    run(view_outlives_its_tensor)


def kernel_on_views() -> None:
    """Compiled functions assert that a tensor begins where its memory does; kernels do not."""
    kernel = programs.add_one_from_source()
    step = max(256, tvm_edge.opencl.device_info()["address_alignment"])
    bytes_each = programs.N * 4
    whole = upload(np.zeros(4 * (step + bytes_each) // 4, "float32"))
    source = whole._create_view((programs.N,), relative_byte_offset=step)
    target_at = -(-(step + bytes_each) // step) * step
    target = whole._create_view((programs.N,), relative_byte_offset=target_at)
    source.copyfrom(ramp(programs.N))
    for _ in range(2):
        kernel(source, target, 4, programs.THREADS)
    expected = np.zeros(whole.shape, "float32")
    expected[step // 4 : step // 4 + programs.N] = ramp(programs.N)
    expected[target_at // 4 : target_at // 4 + programs.N] = ramp(programs.N) + 1
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_a_kernel_reads_and_writes_views(run: Run) -> None:
    run(kernel_on_views)


def function_on_views() -> None:
    """Functions that take an offset get the memory's handle and the offset by itself."""
    whole = upload(ramp(1024))
    source = whole._create_view((programs.N,), relative_byte_offset=12)
    target = whole._create_view((programs.N,), relative_byte_offset=2004)
    programs.add_one_at_offset()(source, target)
    expected = ramp(1024)
    expected[501 : 501 + programs.N] = expected[3 : 3 + programs.N] + 1
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_a_compiled_function_takes_views_at_any_offset(run: Run) -> None:
    run(function_on_views)


def kernel_on_unaligned_view() -> str:
    kernel = programs.add_one_from_source()
    whole = upload(ramp(1024))
    out = empty((programs.N,))
    try:
        kernel(whole._create_view((programs.N,), relative_byte_offset=4), out, 4, programs.THREADS)
    except ValueError as error:
        return str(error)
    np.testing.assert_array_equal(out.numpy(), ramp(1024)[1 : programs.N + 1] + 1)
    return "right"


def test_an_address_no_sub_buffer_begins_at_is_right_or_refused(run: Run) -> None:
    said = run(kernel_on_unaligned_view)
    assert said == "right" or "copy" in said
    if run(memory_kind).startswith("svm"):
        assert said == "right"


def copy_misaligned() -> None:
    n = 1001
    raw = np.zeros(4 * n + 16, "uint8")
    for shift in (1, 2, 3):
        values = raw[shift : shift + 4 * n].view("float32")
        values[:] = ramp(n) + shift
        there = empty((n,))
        there.copyfrom(values)
        back = np.zeros(4 * n + 16, "uint8")
        address = ctypes.c_void_p(back.ctypes.data + shift)
        _ffi_api.TVMTensorCopyToBytes(there, address, 4 * n)
        assert back[shift : shift + 4 * n].tobytes() == values.tobytes()
        assert not back[:shift].any() and not back[shift + 4 * n :].any()


def test_host_pointers_of_any_alignment(run: Run) -> None:
    run(copy_misaligned)


def host_memory_may_go() -> None:
    tensors = [empty((65536,)) for _ in range(10)]
    slow = upload(np.zeros(programs.N, "int32"))
    for i, tensor in enumerate(tensors):
        values = np.full(65536, i, "float32")
        programs.spin()(100_000, slow)  # what a copy would have to wait for
        tensor.copyfrom(values)
        # A copy that was still reading would read this.
        values[:] = -1
        del values
    for i, tensor in enumerate(tensors):
        assert (tensor.numpy() == i).all()


def test_an_upload_does_not_look_at_the_host_afterwards(run: Run) -> None:
    run(host_memory_may_go)


def reuse_while_in_flight() -> None:
    """Memory freed and written anew while a kernel that reads the old contents is still queued."""
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    slow = upload(np.zeros(programs.N, "int32"))
    programs.spin()(50_000, slow)
    programs.add_one()(a, b)
    del a
    for _ in range(3):
        upload(np.full(programs.N, -1, "float32"))
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_memory_freed_under_a_queued_kernel(run: Run) -> None:
    run(reuse_while_in_flight)


def counters() -> None:
    settled_memory()
    tvm_edge.opencl.release_memory()
    before = tvm_edge.opencl.memory()
    assert before["pooled"] == 0
    tvm_edge.opencl.reset_peak()
    assert tvm_edge.opencl.memory()["peak"] == before["in_use"]
    mib = 1 << 20
    first = empty((mib,), "uint8")
    second = empty((mib,), "uint8")
    both = tvm_edge.opencl.memory()
    assert both["live"] == before["live"] + 2
    # A block may be somewhat larger than what was asked for, so that it fits the next request.
    assert 2 * mib <= both["in_use"] - before["in_use"] <= 2.5 * mib
    del first, second
    after = tvm_edge.opencl.memory()
    assert (after["in_use"], after["live"]) == (before["in_use"], before["live"])
    assert after["peak"] == both["in_use"]
    assert after["pooled"] == both["in_use"] - before["in_use"]
    third = empty((mib,), "uint8")
    assert 0 < tvm_edge.opencl.memory()["pooled"] < after["pooled"]
    assert tvm_edge.opencl.memory()["peak"] == both["in_use"]
    del third
    assert tvm_edge.opencl.release_memory() == after["pooled"]
    assert tvm_edge.opencl.memory()["pooled"] == 0
    assert tvm_edge.opencl.release_memory() == 0


def test_bytes_in_use_peak_and_pooled(run: Run) -> None:
    run(counters)


def read_the_hosts_memory() -> None:
    """A kernel reads what the host has, a copy of it is a copy, and it lives as long as it must."""
    host = tvm.runtime.tensor(ramp(programs.N))
    borrowed = tvm_edge.opencl.borrow(host)
    if memory_kind() == "buffer":
        assert borrowed is None
        return
    assert borrowed is not None and borrowed.device == tvm.opencl()
    before = tvm_edge.opencl.memory()
    result = empty((programs.N,))
    add = programs.add_one()
    add(borrowed, result)
    np.testing.assert_array_equal(result.numpy(), ramp(programs.N) + 1)
    # Not of a copy: what the host writes is seen.
    np.from_dlpack(host)[:] = 7
    add(borrowed, result)
    np.testing.assert_array_equal(result.numpy(), np.full(programs.N, 8, "float32"))
    np.testing.assert_array_equal(borrowed.numpy(), np.full(programs.N, 7, "float32"))
    copy = borrowed.copyto(tvm.opencl())
    assert tvm_edge.opencl.memory()["live"] == before["live"] + 2
    del host
    add(borrowed, result)
    del borrowed  # while a kernel may be reading it
    np.testing.assert_array_equal(result.numpy(), np.full(programs.N, 8, "float32"))
    np.testing.assert_array_equal(copy.numpy(), np.full(programs.N, 7, "float32"))


def test_kernels_read_host_memory_where_it_is(run: Run) -> None:
    run(read_the_hosts_memory)


def borrow_what_is_not_for_kernels() -> None:
    host = tvm.runtime.tensor(ramp(64))
    assert tvm_edge.opencl.borrow(host._create_view((16,), relative_byte_offset=4)) is None
    assert tvm_edge.opencl.borrow(tvm.runtime.empty((0,), "float32")) is None
    with pytest.raises(ValueError, match="a CPU tensor"):
        tvm_edge.opencl.borrow(upload(ramp(16)))


def test_what_is_not_borrowed(run: Run) -> None:
    run(borrow_what_is_not_for_kernels)


def more_than_there_is() -> None:
    """Ask for more than the device has; go on afterwards."""
    held = empty((1 << 20,), "uint8")
    in_use = tvm_edge.opencl.memory()["in_use"]
    total = tvm_edge.opencl.device_info()["global_memory"]
    asked = 4 * total
    with pytest.raises(MemoryError) as caught:
        empty((asked,), "uint8")
    for number in (asked, in_use, total):
        assert str(number) in str(caught.value)
    assert tvm_edge.opencl.memory()["in_use"] == in_use
    copy_there_and_back("float32", 1000)
    del held


def test_out_of_memory_says_how_much_and_is_survived(run: Run) -> None:
    run(more_than_there_is)


# ---- what the driver sees ----


def allocations_of_a_loop() -> int:
    """Driver allocations for 100 rounds after the first."""
    empty((5000,)), empty((100,))
    shim = Shim.here()
    shim.clear()
    for _ in range(100):
        empty((5000,)), empty((100,))
    return shim["allocations"]


def test_the_driver_is_not_asked_again_for_the_same_size(shimmed: Worker) -> None:
    assert shimmed(allocations_of_a_loop) == 0


def driver_memory_after_release() -> tuple[int, int]:
    """Blocks of the driver that a freed tensor keeps, before and after `release_memory`."""
    tvm_edge.opencl.release_memory()
    shim = Shim.here()
    start = shim["buffers"] + shim["svm"]
    del_me = empty((1 << 16,), "uint8")
    del del_me
    pooled = shim["buffers"] + shim["svm"] - start
    tvm_edge.opencl.release_memory()
    return pooled, shim["buffers"] + shim["svm"] - start


def test_released_memory_goes_back_to_the_driver(shimmed: Worker) -> None:
    assert shimmed(driver_memory_after_release) == (1, 0)


def allocation_that_fails_once() -> int:
    """Pooled bytes left after an allocation that succeeds only at the second try."""
    shim = Shim.here()
    empty((1 << 20,), "uint8")
    assert tvm_edge.opencl.memory()["pooled"] > 0
    for call in ("clCreateBuffer", "clSVMAlloc"):
        shim.fail(call, -4)
    tensor = empty((3 << 20,), "uint8")
    assert tensor.shape == (3 << 20,)
    return tvm_edge.opencl.memory()["pooled"]


def test_the_pool_is_given_back_before_memory_is_out(shimmed: Worker) -> None:
    assert shimmed(allocation_that_fails_once) == 0


def allocation_that_always_fails() -> str:
    """The error while the driver has nothing left; then all is well again."""
    shim = Shim.here()
    for call in ("clCreateBuffer", "clSVMAlloc"):
        shim.fail(call, -4, times=-1)
    with pytest.raises(MemoryError) as caught:
        empty((12345678,), "uint8")
    shim.clear()
    copy_there_and_back("float32", 12345)
    return str(caught.value)


def test_a_driver_out_of_memory(shimmed: Worker) -> None:
    assert "12345678" in shimmed(allocation_that_always_fails)
