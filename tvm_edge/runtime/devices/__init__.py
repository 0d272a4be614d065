"""Devices that models run on, with one protocol: whoever loads a model asks for no kind.

A new kind is a module here and a line in :data:`DEVICES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.runtime.devices.cpu import CpuDevice
from tvm_edge.runtime.devices.cuda import CudaDevice
from tvm_edge.runtime.devices.opencl import OpenCLDevice
from tvm_edge.runtime.devices.protocol import RuntimeDevice

__all__ = [
    "DEVICES",
    "RuntimeDevice",
    "device_index",
    "device_of",
    "is_host",
    "open_device",
]

DEVICES: Mapping[str, type[RuntimeDevice]] = {
    each.kind: each for each in (CpuDevice, OpenCLDevice, CudaDevice)
}
"""By TVM's name of the kind, as manifests have it."""


def device_of(kind: str, index: int = 0) -> RuntimeDevice:
    """Return a device by its kind and number, whether it is here or not."""
    return DEVICES[kind](index)


def open_device(kind: str, index: int = 0) -> RuntimeDevice:
    """Return a device that is here.

    Raises
    ------
    DeviceUnavailableError
    """
    device = device_of(kind, index)
    device.open()
    return device


def is_host(kind: str) -> bool:
    """Return whether a kind of device is the CPU that the process runs on."""
    return kind in DEVICES and DEVICES[kind].is_host


def device_index(device: str | None, kind: str) -> int:
    """Read the number in a device's name, for a model compiled for a kind of device.

    Parameters
    ----------
    device : str or None
        ``"opencl"``, ``"opencl:1"``, ``"cuda"``, ``"cpu"``, …; ``None``: the first.
    kind : str
        The model's.

    Raises
    ------
    InputError
        Not the name of a device.
    DeviceUnavailableError
        The name of a device that the code is not made for.
    """
    if device is None:
        return 0
    name, colon, number = str(device).partition(":")
    named = next((each for each in DEVICES.values() if name in each.names), None)
    if named is None or (colon and not (number.isascii() and number.isdecimal())):
        raise InputError(
            f"device={device!r} is not the name of a device; use 'cpu', 'opencl', 'opencl:1', "
            "'cuda', …, or leave it out",
            name="device",
            expected=f"{kind}, {kind}:1, …",
            got=str(device),
        )
    if named.kind != kind:
        raise DeviceUnavailableError(
            f"the model is compiled for {kind} and cannot run on {device!r}; "
            f"leave device out, or compile the model with target={named.kind!r}"
        )
    index = int(number or 0)
    if named.is_host and index:
        raise DeviceUnavailableError(
            f"there is no device {device!r}: all cores of this machine are 'cpu:0'; "
            "leave device out, and choose how many to use with num_threads"
        )
    return index
