"""NVIDIA's GPUs, by TVM's CUDA runtime."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.base import _LOADED_LIBS
from tvm_ffi import DLDeviceType
from tvm_ffi.libinfo import load_lib_ctypes

from tvm_edge.runtime import captures
from tvm_edge.runtime.captures import Turn
from tvm_edge.runtime.devices.protocol import RuntimeDevice

__all__ = ["CudaDevice"]

_LOG = logging.getLogger("tvm_edge.runtime")


class CudaDevice(RuntimeDevice):
    """A CUDA device: everything runs on the default stream, and is done when a call returns.

    TVM's own copies always go to that stream, and producers of inputs are asked to be ready for it.
    """

    kind = "cuda"
    names = ("cuda",)
    dlpack_type = DLDeviceType.kDLCUDA
    needs = "an NVIDIA GPU with its driver"
    may_capture = True

    def open(self) -> None:
        if not tvm.runtime.enabled(self.kind):
            _load_runtime()
        super().open()

    @property
    def pinned_memory(self) -> tvm.runtime.Device:
        return tvm.runtime.device(int(DLDeviceType.kDLCUDAHost), self.index)

    def finish_run(self) -> None:
        # A consumer's stream knows nothing of ours, nor does the allocator of a producer that frees
        # an input next.
        self.sync()

    @classmethod
    def driver(cls) -> AbstractContextManager[Turn]:
        """Context in which no other thread records a CUDA graph."""
        return captures.CAPTURES.shared()

    def default_stream(self) -> AbstractContextManager[Any]:
        return tvm_ffi.use_raw_stream(self.handle, 0)


def _load_runtime() -> None:
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
