"""Each error says what failed, where, and what to do about it."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.target import Target

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import (
    NO_ICD,
    NOT_AVAILABLE,
    OUT_OF_HOST_MEMORY,
    OUT_OF_RESOURCES,
    Shim,
    Worker,
    empty,
    ramp,
    upload,
    worker,
)

TAGS = ("blockIdx.x", "threadIdx.x")
TWO = (("handle", "handle"), TAGS)


def check_it_works() -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one()(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_a_build_failure_names_the_kernel_and_quotes_the_log(device: Any) -> None:
    code = programs.ADD_ONE_SOURCE.replace("1.0f", "no_such_constant")
    a, b = empty((programs.N,)), empty((programs.N,))
    module = programs.from_source(code.replace("add_one", "broken"), {"broken": TWO})
    for _ in range(2):  # the second try says the same
        with pytest.raises(RuntimeError) as caught:
            module["broken"](programs.pointer(a), programs.pointer(b), 4, 16)
        assert "broken" in str(caught.value)
        assert "no_such_constant" in str(caught.value)
    check_it_works()


def test_a_broken_kernel_does_not_harm_its_neighbours(device: Any) -> None:
    bad = programs.ADD_ONE_SOURCE.replace("1.0f", "no_such_constant").replace("add_one", "broken")
    code = bad + "\n" + programs.ADD_ONE_SOURCE
    module = programs.from_source(code, {"broken": TWO, "add_one": TWO})
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    module["add_one"](programs.pointer(a), programs.pointer(b), 4, 16)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def failing_build() -> str:
    """The error of a build that the driver fails once."""
    Shim.here().fail("clBuildProgram", -11)
    call = programs.add_one_from_source("fails_once")
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    with pytest.raises(RuntimeError) as caught:
        call(a, b, 4, 16)
    call(a, b, 4, 16)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)
    return str(caught.value)


def test_a_build_can_be_tried_again(shimmed: Worker) -> None:
    message = shimmed(failing_build)
    assert "fails_once" in message
    assert "the build was told to fail" in message


def test_a_work_group_beyond_the_device(device: Any) -> None:
    n = 2 * device.max_threads_per_block
    a, b = upload(np.zeros(n, "float32")), empty((n,))
    with pytest.raises(ValueError) as caught:
        programs.add_one_from_source("too_wide")(a, b, 1, n)
    assert "too_wide" in str(caught.value)
    assert str(n) in str(caught.value)
    assert str(device.max_threads_per_block) in str(caught.value)
    check_it_works()


def test_a_work_group_the_kernel_forbids(device: Any) -> None:
    code = programs.ADD_ONE_SOURCE.replace(
        "__kernel", "__kernel __attribute__((reqd_work_group_size(8, 1, 1)))"
    )
    module = programs.from_source(code.replace("add_one", "eight_only"), {"eight_only": TWO})
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    with pytest.raises(ValueError) as caught:
        module["eight_only"](programs.pointer(a), programs.pointer(b), 4, 16)
    assert "eight_only" in str(caught.value)
    # Asked and required.
    assert re.search(r"\b16\b.*\b8x1x1\b", str(caught.value))
    module["eight_only"](programs.pointer(a), programs.pointer(b), 8, 8)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_dynamic_local_memory_is_refused(device: Any) -> None:
    """The code generator would make it a private array: wrong results without a word."""
    with pytest.raises(ValueError, match=r"main_kernel[\s\S]*shared\.dyn"):
        programs.compiled(programs.dynamic_shared())


def test_memory_of_the_host_is_no_argument(device: Any) -> None:
    module = programs.from_source(programs.ADD_ONE_SOURCE, {"add_one": TWO})
    host = np.zeros(programs.N, "float32")
    out = empty((programs.N,))
    for address in (host.ctypes.data, 4096):
        with pytest.raises(ValueError, match="add_one"):
            module["add_one"](ctypes.c_void_p(address), programs.pointer(out), 4, 16)
    check_it_works()


def test_freed_memory_is_no_argument(device: Any) -> None:
    module = programs.from_source(programs.ADD_ONE_SOURCE, {"add_one": TWO})
    gone = programs.pointer(empty((programs.N,)))
    out = empty((2 * programs.N,))
    with pytest.raises(ValueError):
        module["add_one"](gone, programs.pointer(out), 4, 16)


def test_a_cpu_tensor_for_an_opencl_function(device: Any) -> None:
    cpu = tvm.runtime.tensor(ramp(programs.N))
    with pytest.raises((RuntimeError, ValueError)):
        programs.add_one()(cpu, empty((programs.N,)))
    check_it_works()


def test_too_few_arguments(device: Any) -> None:
    module = programs.from_source(programs.ADD_ONE_SOURCE, {"add_one": TWO})
    with pytest.raises((TypeError, ValueError, RuntimeError), match="add_one"):
        module["add_one"](programs.pointer(empty((programs.N,))))


def refused_launch(code: int) -> tuple[str, str]:
    """Type and text of the error where the driver refuses one launch; the next one works."""
    check_it_works()
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    Shim.here().fail("clEnqueueNDRangeKernel", code)
    try:
        programs.add_one()(a, b)
    except Exception as error:
        refused = type(error).__name__, str(error)
    check_it_works()
    return refused


def test_a_driver_out_of_resources(shimmed: Worker) -> None:
    kind, message = shimmed(refused_launch, OUT_OF_RESOURCES)
    assert kind == "RuntimeError"
    assert "main_kernel" in message and "CL_OUT_OF_RESOURCES" in message


def test_a_driver_out_of_host_memory(shimmed: Worker) -> None:
    kind, message = shimmed(refused_launch, OUT_OF_HOST_MEMORY)
    assert kind == "MemoryError"
    assert "main_kernel" in message and "TVM_EDGE_OPENCL_IN_FLIGHT" in message


def lose_the_device() -> list[str]:
    """What is said when the device goes, and after that."""
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    programs.add_one()(a, b)
    Shim.here().fail("clEnqueueNDRangeKernel", NOT_AVAILABLE)
    said = []
    for action in (
        lambda: programs.add_one()(a, b),
        lambda: programs.add_one()(a, b),
        lambda: empty((1 << 20,)),
    ):
        with pytest.raises(RuntimeError) as caught:
            action()
        said.append(str(caught.value))
    return said


def test_a_lost_device_stays_lost(on_shim: dict[str, object]) -> None:
    """And the process that had it ends well."""
    with worker(on_shim) as run:
        said = run(lose_the_device)
    assert len(said) == 3
    assert all("lost" in message for message in said)


def copies_that_fail() -> list[str]:
    """Errors of an upload, a copy and a download that the driver refuses; the next ones work."""
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    said = []
    for call, action in (
        ("clEnqueueWriteBuffer", lambda: a.copyfrom(ramp(programs.N))),
        ("clEnqueueCopyBuffer", lambda: a.copyto(b)),
        ("clEnqueueReadBuffer", lambda: a.numpy()),
    ):
        Shim.here().fail(call, OUT_OF_RESOURCES)
        with pytest.raises(RuntimeError) as caught:
            action()
        said.append(str(caught.value))
        action()
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N))
    return said


def test_a_refused_copy_is_an_error(on_shim: dict[str, object]) -> None:
    with worker({**on_shim, "TVM_EDGE_OPENCL_MEMORY": "buffer"}) as run:
        assert all("CL_OUT_OF_RESOURCES" in message for message in run(copies_that_fail))


def no_device() -> tuple[bool, str, str]:
    """`exist`, the error of an allocation and `status`'s reason."""
    exists = tvm.opencl(0).exist
    with pytest.raises(RuntimeError) as caught:
        empty((4,))
    return bool(exists), str(caught.value), tvm_edge.opencl.status()["error"]


@pytest.mark.parametrize(
    "changes",
    [
        {"SHIM_SET": "no_platforms=1"},
        {"SHIM_FAULTS": f"clGetPlatformIDs:1:-1:{NO_ICD}"},
        {"SHIM_FAULTS": "clGetDeviceIDs:1:-1:-1"},
    ],
    ids=["no platforms", "no ICD", "no devices"],
)
def test_no_device_sends_to_the_doctor(
    on_shim: dict[str, object], changes: dict[str, object]
) -> None:
    with worker({**on_shim, **changes}) as run:
        exists, message, reason = run(no_device)
    assert not exists
    assert "tvm-edge doctor" in message
    assert reason and reason in message


def context_that_fails() -> str:
    """The error of a device that cannot be opened; the second try works."""
    Shim.here().fail("clCreateContext", OUT_OF_RESOURCES)
    with pytest.raises(RuntimeError) as caught:
        empty((4,))
    check_it_works()
    return str(caught.value)


def test_a_device_that_cannot_be_opened(on_shim: dict[str, object]) -> None:
    with worker(on_shim) as run:
        assert "CL_OUT_OF_RESOURCES" in run(context_that_fails)


def test_compiling_needs_no_device(on_shim: dict[str, object]) -> None:
    with worker({**on_shim, "SHIM_SET": "no_platforms=1"}) as run:
        assert "__kernel" in run(compiled_source)


def compiled_source() -> str:
    """Source of a kernel compiled for a device that is not here."""
    assert Target("opencl").kind.name == "opencl"
    return programs.device_code(programs.add_one()).inspect_source()
