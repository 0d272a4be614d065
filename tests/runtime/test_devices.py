"""Devices behind one protocol: names, numbers, and what is asked of each kind alike."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tvm

from tools.static_counts import Module, device_kinds
from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.runtime.devices import (
    DEVICES,
    device_index,
    is_host,
    open_device,
)

RUNTIME = Path(__file__).parents[2] / "tvm_edge/runtime"


def test_the_host_is_always_here_and_the_only_one() -> None:
    assert [kind for kind in DEVICES if is_host(kind)] == ["llvm"]
    assert not is_host("vulkan")
    assert open_device("llvm", 7).handle == tvm.cpu()


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
@pytest.mark.parametrize("index", [1000, 2**31, 10**12])
def test_a_device_that_is_not_here(kind: str, index: int) -> None:
    with pytest.raises(DeviceUnavailableError, match=rf"finds no device {kind}:{index} .*doctor"):
        open_device(kind, index)


@pytest.mark.parametrize(
    ("name", "kind", "index"),
    [(None, "cuda", 0), ("cpu", "llvm", 0), ("llvm:0", "llvm", 0), ("opencl:12", "opencl", 12)],
)
def test_names(name: str | None, kind: str, index: int) -> None:
    assert device_index(name, kind) == index


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("gpu", "opencl", InputError),
        ("opencl:one", "opencl", InputError),
        ("opencl:", "opencl", InputError),
        ("cuda", "opencl", DeviceUnavailableError),
        ("cpu:1", "llvm", DeviceUnavailableError),
    ],
)
def test_names_of_no_device(name: str, kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"'{name}'"):
        device_index(name, kind)


def test_who_runs_models_asks_for_no_kind() -> None:
    """Kinds are told apart in `devices/` alone."""
    modules = {
        path.stem: Module(str(path.relative_to(RUNTIME)), path.stem, ast.parse(path.read_text()))
        for path in RUNTIME.rglob("*.py")
    }
    assert not [f"{place.path}: {place.what}" for place in device_kinds(modules)]
