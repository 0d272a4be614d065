"""The C API through ctypes, as tvm_edge.h declares it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from tvm_edge.library_path import library_path

__all__ = ["CModel", "CStream", "Failed", "Library", "Memory", "Tensor"]

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_KINDS = {0: "int", 1: "uint", 2: "float"}


class Dtype(Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("data", c_void_p),
        ("nbytes", c_size_t),
        ("dtype", Dtype),
        ("ndim", c_int32),
        ("shape", c_int64 * 8),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("owner", c_void_p),
    )


class LoadOptions(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("device", c_char_p),
        ("num_threads", c_int32),
        ("cpus", POINTER(c_int32)),
        ("num_cpus", c_size_t),
        ("copy", c_int32),
    )


class RunOptions(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("models", POINTER(c_char_p)),
        ("num_models", c_size_t),
        ("device_outputs", c_int32),
    )


class Memory(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("fd", c_int32),
        ("address", c_void_p),
        ("nbytes", c_size_t),
    )


class Error(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("message", c_char_p),
        ("name", c_char_p),
        ("expected", c_char_p),
        ("got", c_char_p),
    )


class Failed(Exception):
    """A status that is not 0, and what is said of it."""

    def __init__(self, status: int, error: Error) -> None:
        super().__init__(error.message.decode(errors="replace"))
        self.status = status
        self.name, self.expected, self.got = (
            text.decode() for text in (error.name, error.expected, error.got)
        )


class Library:
    """The functions; a status that is not 0 is raised."""

    def __init__(self) -> None:
        self.functions = ctypes.CDLL(str(library_path()))

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.functions, f"tvm_edge_{name}")(*arguments)
        if status:
            error = Error(ctypes.sizeof(Error))
            self.functions.tvm_edge_last_error_details(byref(error))
            raise Failed(status, error)


def aligned(shape: Sequence[int], dtype: str = "float32", *, beside: int = 0) -> np.ndarray:
    """An array of zeros that begins `beside` bytes after a multiple of 64."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.zeros(nbytes + 128, "uint8")
    begin = -whole.ctypes.data % 64 + beside
    return whole[begin : begin + nbytes].view(dtype).reshape(shape)


def tensor_of(name: str, array: np.ndarray) -> Tensor:
    """A tensor over an array."""
    dtype = Dtype(_CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1)
    shape = (c_int64 * 8)(*array.shape)
    return Tensor(
        name.encode(), array.ctypes.data, array.nbytes, dtype, array.ndim, shape, 1, 0, None
    )


def array_of(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor's elements."""
    dtype = np.dtype(f"{_KINDS[tensor.dtype.code]}{tensor.dtype.bits}")
    content = ctypes.string_at(tensor.data, tensor.nbytes) if tensor.nbytes else b""
    return np.frombuffer(content, dtype).reshape(tensor.shape[: tensor.ndim])


class CModel:
    """A model by the C API."""

    def __init__(
        self, source: Path | bytes | int, library: Library | None = None, **options: Any
    ) -> None:
        self.library = library or Library()
        self.handle = c_void_p()
        given = LoadOptions(ctypes.sizeof(LoadOptions), **options)
        where = byref(given), byref(self.handle)
        if isinstance(source, bytes):
            self._memory = source
            nbytes = c_size_t(len(source))
            self.library.call("load_memory", source, nbytes, None, None, *where)
        elif isinstance(source, int):
            self.library.call("load_fd", source, *where)
        else:
            self.library.call("load", str(source).encode(), *where)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        models: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        given = (Tensor * len(inputs))(*(tensor_of(*item) for item in inputs.items()))
        wanted = (Tensor * len(outputs))(*(Tensor(name=name.encode()) for name in outputs))
        names = (c_char_p * len(models))(*(name.encode() for name in models))
        options = RunOptions(
            ctypes.sizeof(RunOptions), names if models else None, c_size_t(len(models)), 0
        )
        sizes = c_size_t(len(inputs)), c_size_t(len(outputs))
        self.library.call("run", self.handle, byref(options), given, sizes[0], wanted, sizes[1])
        found = {name: array_of(tensor) for name, tensor in zip(outputs, wanted, strict=True)}
        for tensor in wanted:
            self.library.functions.tvm_edge_release(byref(tensor))
        return found

    def run_into(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        """Run, with results in the caller's arrays."""
        given = (Tensor * len(inputs))(*(tensor_of(*item) for item in inputs.items()))
        room = (Tensor * len(outputs))(*(tensor_of(*item) for item in outputs.items()))
        sizes = c_size_t(len(inputs)), c_size_t(len(outputs))
        self.library.call("run", self.handle, None, given, sizes[0], room, sizes[1])

    def imported(self, **source: Any) -> tuple[Tensor, c_void_p]:
        """A tensor over memory of somebody else's, and the buffer to free."""
        tensor, buffer = Tensor(), c_void_p()
        memory = Memory(ctypes.sizeof(Memory), **source)
        self.library.call("import", self.handle, byref(memory), byref(tensor), byref(buffer))
        return tensor, buffer

    def free(self) -> None:
        self.library.call("free", self.handle)


class CStream:
    """Frames on their way through a model."""

    def __init__(self, model: CModel, depth: int) -> None:
        self.library, self.handle = model.library, c_void_p()
        self.library.call("stream_begin", model.handle, c_size_t(depth), byref(self.handle))

    def push(self, inputs: Mapping[str, np.ndarray]) -> None:
        given = (Tensor * len(inputs))(*(tensor_of(*item) for item in inputs.items()))
        self.library.call("stream_push", self.handle, given, c_size_t(len(inputs)))

    def pop(self, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        wanted = (Tensor * len(outputs))(*(Tensor(name=name.encode()) for name in outputs))
        self.library.call("stream_pop", self.handle, wanted, c_size_t(len(outputs)))
        found = {name: array_of(tensor) for name, tensor in zip(outputs, wanted, strict=True)}
        for tensor in wanted:
            self.library.functions.tvm_edge_release(byref(tensor))
        return found

    def __len__(self) -> int:
        count = c_size_t()
        self.library.call("stream_pending", self.handle, byref(count))
        return count.value

    def end(self) -> None:
        self.library.call("stream_end", self.handle)
