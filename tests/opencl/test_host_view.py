"""A view of device memory for the host, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import empty, memory_kind, ramp, upload

Run = Callable[..., Any]


@pytest.fixture
def shared(run: Run) -> Run:
    """Where host and device share memory, in each way they can."""
    if run(memory_kind) == "buffer":
        pytest.skip("the device has memory of its own")
    return run


def writes_of_both_sides() -> None:
    tensor = upload(ramp(programs.N))
    view = tvm_edge.opencl.host_view(tensor)
    assert view.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
    np.testing.assert_array_equal(view.numpy(), ramp(programs.N))
    np.from_dlpack(view)[:] = ramp(programs.N) * 3
    del view
    out = empty((programs.N,))
    programs.add_one()(tensor, out)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N) * 3 + 1)
    view = tvm_edge.opencl.host_view(out)
    np.testing.assert_array_equal(view.numpy(), ramp(programs.N) * 3 + 1)


def test_both_sides_see_each_others_writes(shared: Run) -> None:
    shared(writes_of_both_sides)


def view_of_running_kernel() -> None:
    counted = upload(np.zeros(programs.N, "int32"))
    programs.spin()(25_000, counted)
    seen = tvm_edge.opencl.host_view(counted).numpy()
    np.testing.assert_array_equal(seen, counted.numpy())


def test_a_view_waits_for_the_kernel_that_writes(shared: Run) -> None:
    shared(view_of_running_kernel)


def launches_with_views() -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    for tensor in (a, b):
        view = tvm_edge.opencl.host_view(tensor)
        second = tvm_edge.opencl.host_view(tensor)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="view"):
                programs.add_one()(a, b)
            del view
            view = second
        del view, second
    programs.add_one()(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_no_launch_while_a_view_is_alive(shared: Run) -> None:
    shared(launches_with_views)


def view_of_a_part() -> None:
    tensor = upload(ramp(1024))
    part = tensor._create_view((4, 8), relative_byte_offset=512)
    view = tvm_edge.opencl.host_view(part)
    assert view.shape == (4, 8)
    np.testing.assert_array_equal(view.numpy().ravel(), ramp(1024)[128:160])


def test_a_view_of_a_part(shared: Run) -> None:
    shared(view_of_a_part)


def view_without_its_tensor() -> None:
    tensor = upload(ramp(1024))
    view = tvm_edge.opencl.host_view(tensor)
    in_use = tvm_edge.opencl.memory()["in_use"]
    del tensor
    assert tvm_edge.opencl.memory()["in_use"] == in_use
    upload(np.zeros(1024, "float32"))
    np.testing.assert_array_equal(view.numpy(), ramp(1024))
    del view
    assert tvm_edge.opencl.memory()["in_use"] < in_use


def test_a_view_keeps_the_memory(shared: Run) -> None:
    shared(view_without_its_tensor)


def copies_with_views() -> None:
    """Copies of a tensor that has a view, either way."""
    tensor = upload(ramp(64))
    view = tvm_edge.opencl.host_view(tensor)
    np.from_dlpack(view)[:] = 5
    assert (tensor.numpy() == 5).all()
    tensor.copyfrom(ramp(64))
    np.testing.assert_array_equal(view.numpy(), ramp(64))
    other = empty((64,))
    tensor.copyto(other)
    np.testing.assert_array_equal(other.numpy(), ramp(64))


def test_copies_see_what_the_view_wrote(shared: Run) -> None:
    shared(copies_with_views)


def refused() -> str:
    """The error where memory is not shared."""
    with pytest.raises(ValueError) as caught:
        tvm_edge.opencl.host_view(upload(ramp(16)))
    return str(caught.value)


def test_separate_memory_has_no_view(run: Run) -> None:
    if run(memory_kind) != "buffer":
        pytest.skip("host and device share memory")
    assert "memory" in run(refused)


def test_a_cpu_tensor_is_refused(device: Any) -> None:
    with pytest.raises(ValueError):
        tvm_edge.opencl.host_view(tvm.runtime.tensor(ramp(16)))
