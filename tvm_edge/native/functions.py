"""Functions of the native runtime (``csrc/python_api.cc``), and its errors as ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import tvm_ffi

from tvm_edge.errors import (
    ArtifactError,
    DeviceUnavailableError,
    InputError,
    MissingDependencyError,
)
from tvm_edge.library_path import native_library

__all__ = ["native_errors", "native_function", "with_details"]

_LOG = logging.getLogger("tvm_edge.runtime")

# What is thrown in C++ is raised again here; of types that nobody registered as RuntimeError.
for _error in (ArtifactError, DeviceUnavailableError, InputError):
    tvm_ffi.register_error(f"tvm_edge.{_error.__name__}", _error)


@cache
def native_function(name: str) -> Any:
    """Return a function of the native runtime by its name."""
    function = tvm_ffi.get_global_func(f"tvm_edge.{name}", allow_missing=True)
    if function is None:
        import tvm  # noqa: F401  its import loads the library, unless somebody turned that off

        try:
            native_library()
        except FileNotFoundError as err:
            raise MissingDependencyError(str(err)) from err
        function = tvm_ffi.get_global_func(f"tvm_edge.{name}")
    _hand_on_messages()
    return function


@cache
def _hand_on_messages() -> None:
    levels = {"info": logging.INFO, "warning": logging.WARNING}
    set_log = tvm_ffi.get_global_func("tvm_edge.runtime.set_log")
    set_log(lambda level, message: _LOG.log(levels[level], "%s", message))


def with_details(error: InputError) -> InputError:
    """Return an error of C++ with its name, expected and got."""
    details = native_function("runtime.error_details")(str(error))
    error.name, error.expected, error.got = map(str, details)
    return error


@contextmanager
def native_errors() -> Iterator[None]:
    """Context in which errors of C++ have their details, and lack of memory is MemoryError."""
    try:
        yield
    except InputError as err:
        raise with_details(err) from err.__cause__
    except RuntimeError as err:
        if "std::bad_alloc" not in str(err):
            raise
        raise MemoryError("TVM found no memory for a tensor or for code") from err
