"""Functions in TVM's registry that a test puts others in front of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

__all__ = ["overridden", "without_shared_memory"]


@contextmanager
def overridden(name: str, around: Callable[[Any], Any]) -> Iterator[None]:
    """Context in which `around` of a function takes its place, for models loaded there."""
    original = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(name, around(original), override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(name, original, override=True)


@contextmanager
def without_shared_memory() -> Iterator[None]:
    """Context in which the host may not write an OpenCL device's memory while kernels run."""

    def info(device_info: Any) -> Any:
        return lambda device: {**dict(device_info(device).items()), "memory": "buffer"}

    with overridden("tvm_edge.opencl.device_info", info):
        yield
