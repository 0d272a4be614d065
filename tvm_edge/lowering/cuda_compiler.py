"""Compile CUDA kernels to machine code, with nvcc or NVRTC."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tvm

from tvm_edge.errors import DeviceUnavailableError, MissingDependencyError

__all__ = ["cuda_compiler", "makes_machine_code"]

# CUDA 13, which TVM's wheel is made for, builds for Turing and newer.
_OLDEST = 75

_lock = threading.Lock()


def makes_machine_code() -> bool:
    """Return whether TVM compiles CUDA sources here: its runtime for CUDA does, and needs a driver.

    Otherwise a module keeps the source, and is compiled where it is loaded.
    """
    return tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None


@contextmanager
def cuda_compiler(arch: str) -> Iterator[None]:
    """Have TVM compile CUDA sources with what is installed, and IEEE arithmetic.

    TVM's default is NVRTC through Python bindings that its wheel does not bring, and fast
    mathematics, whose exponentials and divisions are too coarse for the promised 1e-4. Both can
    only be chosen by environment variables.

    Raises
    ------
    MissingDependencyError
        There is neither nvcc nor NVRTC.
    DeviceUnavailableError
        CUDA 13 does not build for the architecture.
    """
    number = "".join(filter(str.isdigit, arch))
    if number and int(number) < _OLDEST:
        raise DeviceUnavailableError(
            f"CUDA 13 does not build for {arch}, only for sm_{_OLDEST} and newer; "
            "use tvm_edge.analyze for what would be compiled"
        )
    if shutil.which("nvcc"):
        mode = "nvcc"
    elif importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        mode = "nvrtc"
    else:
        raise MissingDependencyError(
            "compiling for CUDA needs the CUDA toolkit's nvcc on PATH, or NVRTC; "
            "run: pip install cuda-bindings 'nvidia-cuda-nvrtc==13.*'"
        )
    wanted = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false --prec-div=true --prec-sqrt=true",
    }
    with _lock:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update({name: v for name, v in wanted.items() if before[name] is None})
        try:
            yield
        finally:
            for name, previous in before.items():
                if previous is None:
                    del os.environ[name]
