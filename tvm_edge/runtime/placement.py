"""Which devices a model runs on, and what of it lies where."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.base import _LOADED_LIBS
from tvm_ffi.libinfo import load_lib_ctypes

from tvm_edge.errors import DeviceUnavailableError, InputError

__all__ = ["STREAMED", "DevicePlan", "device_index", "input_device", "open_devices"]

_LOG = logging.getLogger("tvm_edge.runtime")

_CPU = "llvm"
_LAST_INDEX = 2**31 - 1  # a device's number is an int32
STREAMED = -1
"""In place of the device of a weight: it stays where it is mapped, and ``main`` asks for it
(:mod:`tvm_edge.runtime.streaming`)."""

_DRIVERS = {"cuda": "an NVIDIA GPU with its driver", "opencl": "a GPU with its OpenCL driver"}


@dataclass(frozen=True)
class DevicePlan:
    """Devices of a model; inputs and weights name theirs by position in `kinds`.

    Attributes
    ----------
    kinds : tuple[str, ...]
        TVM's names of the kinds of device, in the order of the code's virtual devices.
    inputs, weights : tuple[int, ...]
        A weight may be :data:`STREAMED` instead.
    """

    kinds: tuple[str, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DevicePlan:
        """The inverse of :meth:`to_dict`."""
        return cls(tuple(fields["kinds"]), tuple(fields["inputs"]), tuple(fields["weights"]))


def open_devices(kinds: Sequence[str], index: int = 0) -> list[tvm.runtime.Device]:
    """The devices of a model, GPUs being number `index` of their kind.

    Raises
    ------
    DeviceUnavailableError
        One is not here.
    """
    found = []
    for kind in kinds:
        if kind == _CPU:
            found.append(tvm.cpu())
            continue
        if kind == "cuda" and not tvm.runtime.enabled(kind):
            _load_cuda_runtime()
        device = tvm.device(kind, index) if index <= _LAST_INDEX else None
        if device is None or not tvm.runtime.enabled(kind) or not device.exist:
            raise DeviceUnavailableError(
                f"the model is compiled for {kind}, and TVM finds no device {kind}:{index} on this "
                f"machine (it takes {_DRIVERS.get(kind, 'its driver')}); to see what is missing, "
                "run: tvm-edge doctor"
            )
        found.append(device)
    return found


def input_device(kind: str, index: int = 0) -> tvm.runtime.Device:
    """One device as :func:`open_devices` returns it, whether it is here or not."""
    return tvm.cpu() if kind == _CPU else tvm.device(kind, min(index, _LAST_INDEX))


def _load_cuda_runtime() -> None:
    """Load TVM's CUDA library, which ``import tvm`` leaves out where it loads no compiler."""
    folder = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent
    try:
        _LOADED_LIBS["tvm_runtime_cuda"] = load_lib_ctypes(
            package="tvm",
            target_name="tvm_runtime_cuda",
            extra_lib_paths=[folder],
            mode="RTLD_LOCAL",
        )
    except (OSError, RuntimeError) as err:  # no libcudart, no driver
        _LOG.info("TVM's CUDA runtime does not load: %s", err)


def device_index(device: str | None, kind: str) -> int:
    """The number in a device's name, for a model compiled for a kind of device.

    Parameters
    ----------
    device : str or None
        ``"opencl"``, ``"opencl:1"``, ``"cuda"``, ``"cpu"``, …; ``None``: the first.
    kind : str
        What the model is compiled for.

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
    name = {"cpu": _CPU}.get(name, name)
    if name not in (_CPU, *_DRIVERS) or (colon and not (number.isascii() and number.isdecimal())):
        raise InputError(
            f"device={device!r} is not the name of a device; use 'cpu', 'opencl', 'opencl:1', "
            "'cuda', …, or leave it out",
            name="device",
            expected=f"{kind}, {kind}:1, …",
            got=str(device),
        )
    if name != kind:
        raise DeviceUnavailableError(
            f"the model is compiled for {kind} and cannot run on {device!r}; "
            f"leave device out, or compile the model with target={name!r}"
        )
    index = int(number or 0)
    if kind == _CPU and index:
        raise DeviceUnavailableError(
            f"there is no device {device!r}: all cores of this machine are 'cpu:0'; "
            "leave device out, and choose how many to use with num_threads"
        )
    return index
