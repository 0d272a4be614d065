"""NVIDIA's GPUs, by TVM's CUDA runtime."""

from __future__ import annotations

import logging
from pathlib import Path

import tvm
from tvm.base import _LOADED_LIBS
from tvm_ffi import DLDeviceType
from tvm_ffi.libinfo import load_lib_ctypes

from tvm_edge.runtime.devices.protocol import RuntimeDevice

__all__ = ["CudaDevice"]

_LOG = logging.getLogger("tvm_edge.runtime")


class CudaDevice(RuntimeDevice):
    """A CUDA device."""

    kind = "cuda"
    names = ("cuda",)
    dlpack_type = DLDeviceType.kDLCUDA
    needs = "an NVIDIA GPU with its driver"
    libraries = ("libtvm_runtime_cuda.so",)

    def open(self) -> None:
        if not tvm.runtime.enabled(self.kind):
            _load_runtime()
        super().open()


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
