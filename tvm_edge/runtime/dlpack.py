"""Arrays of other libraries, through DLPack, as tensors over the same memory.

A producer on a GPU works on streams of its own. It is asked to make its data ready for CUDA's
default stream, which is where models run (:mod:`tvm_edge.runtime.session`).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm_ffi import DLDeviceType

__all__ = [
    "byte_offset",
    "contiguous",
    "device_kind",
    "host_array",
    "import_tensor",
    "is_host_memory",
    "numpy_dtype",
    "share_array",
]

# DLPack's numbers for "the default stream" are not the same on both.
_DEFAULT_STREAM = {int(DLDeviceType.kDLCUDA): 1, int(DLDeviceType.kDLROCM): 0}
_HOST = frozenset(
    int(kind) for kind in (DLDeviceType.kDLCPU, DLDeviceType.kDLCUDAHost, DLDeviceType.kDLROCMHost)
)
_VERSION = (1, 0)  # the first that can say "read-only"


def device_kind(value: Any) -> int:
    """DLPack's number for the kind of device that a producer's data is on."""
    return int(value.__dlpack_device__()[0])


def is_host_memory(kind: int) -> bool:
    """Return whether a kind of device is memory that the CPU reads, pinned memory too."""
    return kind in _HOST


def import_tensor(value: Any, *, to_host: bool = False) -> tvm.runtime.Tensor:
    """A tensor over a producer's memory; or over a copy in host memory that the producer makes.

    Raises
    ------
    Exception
        Whatever the producer raises: ``BufferError`` by the protocol, in practice anything.
    """
    options: dict[str, Any] = {}
    if to_host:
        options["dl_device"] = (int(DLDeviceType.kDLCPU), 0)
    elif (stream := _DEFAULT_STREAM.get(device_kind(value))) is not None:
        options["stream"] = stream
    try:
        capsule = value.__dlpack__(max_version=_VERSION, **options)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = value.__dlpack__(**options)
    return tvm_ffi.from_dlpack(capsule)


def contiguous(value: Any) -> Any:
    """`value` with its elements in order, copied by its own library on its own device.

    Raises
    ------
    BufferError
        The library has no way that is known here.
    """
    for name, options in (("contiguous", {}), ("copy", {"order": "C"})):  # PyTorch, CuPy
        method = getattr(value, name, None)
        if method is not None:
            return method(**options)
    raise BufferError("its elements are not in order; make a contiguous copy of it")


def host_array(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """An array over a tensor in host memory, strided as the tensor is.

    Raises
    ------
    BufferError
        Strided and of a type that NumPy has not by itself (bfloat16, float8).
    """
    dtype = numpy_dtype(str(tensor.dtype))
    if dtype.isbuiltin == 1:
        return np.from_dlpack(tensor)
    if not tensor.is_contiguous():
        raise BufferError("its elements are not in order; make a contiguous copy of it")
    raw = tensor._create_view(tensor.shape, f"uint{8 * dtype.itemsize}")
    return np.from_dlpack(raw).view(dtype)


def share_array(array: np.ndarray) -> tvm.runtime.Tensor:
    """A CPU tensor over a contiguous array, which may be read-only."""
    if not array.size:  # whose strides NumPy leaves at anything, and kernels check
        return tvm.runtime.empty(array.shape, str(array.dtype))
    if array.dtype.isbuiltin == 1:
        return import_tensor(array)
    # ml_dtypes' types: NumPy does not export them.
    raw = import_tensor(array.view(f"uint{8 * array.dtype.itemsize}"))
    return raw._create_view(array.shape, str(array.dtype))


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a name; those of bfloat16 and the float8 family are in ml_dtypes.

    Raises
    ------
    TypeError, AttributeError
        There is none.
    """
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # types that NumPy does not have

        return np.dtype(getattr(ml_dtypes, name))


class _DLTensor(ctypes.Structure):
    """The head of a ``DLManagedTensor``, as dlpack.h lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def byte_offset(tensor: tvm.runtime.Tensor) -> int:
    """Bytes between a tensor's handle and its first element, which TVM's Python does not tell."""
    capsule = tensor.__dlpack__()
    return int(_DLTensor.from_address(_get_pointer(capsule, b"dltensor")).byte_offset)
