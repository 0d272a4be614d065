"""Modules with OpenCL kernels: written, read, asked for what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.opencl import programs
from tests.opencl.support import empty, ramp, upload


def opencl_part(module: tvm.runtime.Module) -> tvm.runtime.Module:
    """The OpenCL module among the imports of `module`."""
    (found,) = (m for m in module.imports if m.kind == "opencl")
    return found


def check_two_kernels(module: Any) -> None:
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    module["main"](a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)
    module["twice"](a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) * 2)


def test_several_kernels_of_one_module(device: Any) -> None:
    check_two_kernels(programs.two_kernels())


def test_a_module_comes_back_from_a_library(device: Any, tmp_path: Path) -> None:
    executable = programs.two_kernels()
    executable.export_library(str(tmp_path / "two.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "two.so"))
    check_two_kernels(loaded)
    code = opencl_part(loaded).inspect_source()
    assert code == programs.device_code(executable).inspect_source()
    assert "__kernel void twice_kernel" in code


def test_a_module_comes_back_twice(device: Any, tmp_path: Path) -> None:
    """What was loaded can be written again: nothing is lost on the way."""
    first, second = str(tmp_path / "first.so"), str(tmp_path / "second.so")
    programs.two_kernels().export_library(first)
    kernels = opencl_part(tvm.runtime.load_module(first))
    host = programs.two_kernels().mod
    old = list(host.imports)
    host.clear_imports()
    host.import_module(kernels)
    try:
        host.export_library(second)
    finally:
        host.clear_imports()
        for module in old:
            host.import_module(module)
    check_two_kernels(tvm.runtime.load_module(second))


def test_loaded_kernels_take_scalars(device: Any, tmp_path: Path) -> None:
    """Argument types travel with the module."""
    programs.mixed_scalars().export_library(str(tmp_path / "mixed.so"))
    out = empty((programs.N,))
    module = tvm.runtime.load_module(str(tmp_path / "mixed.so"))
    module["main"](-5, 0.25, upload(ramp(programs.N)), 3 << 33, -300, out)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N) - 5 + 0.25 + 3 - 300)


def test_a_module_outlives_the_executable(device: Any) -> None:
    launch = programs.add_one.__wrapped__()["main"]
    a, b = upload(ramp(programs.N)), empty((programs.N,))
    launch(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) + 1)


def test_a_missing_kernel_is_missing(device: Any) -> None:
    module = programs.device_code(programs.two_kernels())
    assert module.implements_function("main_kernel")
    assert not module.implements_function("no_such_kernel")
    with pytest.raises(AttributeError, match="no_such_kernel"):
        module.get_function("no_such_kernel")


def test_a_module_without_its_device_can_be_looked_at(device: Any) -> None:
    module = programs.from_source(
        programs.ADD_ONE_SOURCE,
        {"add_one": (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))},
    )
    assert module.kind == "opencl"
    assert module.inspect_source() == programs.ADD_ONE_SOURCE
    assert module.is_binary_serializable()


def test_damaged_module_bytes_are_refused(device: Any) -> None:
    """Cut anywhere, or with lengths that are lies: an error, not a crash."""
    kernels = {"add_one": (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))}
    data = programs.module_bytes(programs.ADD_ONE_SOURCE, kernels)
    for end in range(len(data)):
        with pytest.raises((RuntimeError, ValueError)):
            programs.load_bytes(data[:end])
    for at in range(0, 128, 4):
        broken = data[:at] + b"\xff" * 8 + data[at + 8 :]
        try:
            programs.load_bytes(broken)
        except (RuntimeError, ValueError):
            continue


def test_a_kernel_without_source_is_named(device: Any) -> None:
    kernels = {"elsewhere": (("handle",), ("threadIdx.x",))}
    kernels["add_one"] = (("handle", "handle"), ("threadIdx.x",))
    with pytest.raises(ValueError, match="elsewhere"):
        programs.from_source(programs.ADD_ONE_SOURCE, kernels)


def test_source_without_a_signature_is_named(device: Any) -> None:
    with pytest.raises(ValueError, match="add_one"):
        programs.from_source(programs.ADD_ONE_SOURCE, {})
