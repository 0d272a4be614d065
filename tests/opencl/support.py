"""Child processes, and the stand-in for the OpenCL library."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.runtime import Tensor

ROOT = Path(__file__).resolve().parents[2]
MASKED = os.environ.get("TVM_EDGE_TEST_OPENCL") == "1.2"
"""Whether this is the run in which OpenCL 2.x does not exist (test_masked.py)."""
SANITIZED = "TVM_EDGE_TEST_SANITIZE" in os.environ
"""Whether the runtime is built with a sanitizer, which holds back freed memory (sanitize.sh)."""

DEFAULT_STREAM = 0
THREADS = 8
OUT_OF_RESOURCES, OUT_OF_HOST_MEMORY, NOT_AVAILABLE, NO_ICD = -5, -6, -2, -1001


def child_environment(changes: Mapping[str, object] | None = None) -> dict[str, str]:
    """This process's environment with `changes`; a value of None removes the variable."""
    merged: dict[str, object] = {**os.environ, **(changes or {})}
    return {name: str(value) for name, value in merged.items() if value is not None}


def run_child(
    *arguments: object, environment: Mapping[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments`, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=child_environment(environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def build_shim(folder: Path, *, masked: bool) -> Path:
    """Compile the stand-in; `masked` leaves out all that OpenCL 1.2 does not have."""
    library = folder / ("libshim12.so" if masked else "libshim.so")
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "callers skip where there is no C compiler"
    command = [compiler, "-std=c11", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += ["-DSHIM_OPENCL_12"] * masked
    sources = sorted(Path(__file__).with_name("shim").glob("*.c"))
    subprocess.run([*command, "-o", library, *sources, "-ldl", "-lpthread"], check=True)
    return library


class Shim:
    """The stand-in's own calls, for a process that runs on it."""

    def __init__(self, path: str | Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.shim_get.restype = ctypes.c_long

    @classmethod
    def here(cls) -> Shim:
        """The one this process was started with."""
        return cls(os.environ["TVM_EDGE_OPENCL_LIBRARY"])

    def __getitem__(self, key: str) -> int:
        value = self._library.shim_get(key.encode())
        assert value >= 0, f"{key}: {value}"
        return value

    def __setitem__(self, key: str, value: int) -> None:
        assert self._library.shim_set(key.encode(), value) == 0, key

    def fail(self, call: str, code: int, *, nth: int = 1, times: int = 1) -> None:
        """The nth `call` from now, and so many from there (-1: all), answer `code`."""
        assert self._library.shim_fault(call.encode(), nth, times, code) == 0, call

    def clear(self) -> None:
        """No faults, no settings, totals from zero."""
        self._library.shim_clear()

    def live(self) -> dict[str, int]:
        """References not released yet, by kind."""
        kinds = ("contexts", "queues", "buffers", "svm", "programs", "kernels", "events")
        kinds += ("command_buffers",)
        return {kind: self[kind] for kind in kinds}


class Worker:
    """A process that calls this repository's functions in an environment of its own.

    Functions travel by name, arguments and results pickled; what a function raises is raised here.
    """

    def __init__(self, environment: Mapping[str, object]) -> None:
        self._connection = Client(_forker().address)
        self._exit_code: int | None = None
        self._connection.send({n: None if v is None else str(v) for n, v in environment.items()})

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)`` in the worker."""
        self._connection.send((function, arguments))
        kind, value = self._connection.recv()
        if kind == "error":
            raise value
        if kind == "exit":
            self._exit_code = value
            raise AssertionError(f"the worker died: exit code {value}")
        return value

    def close(self) -> int:
        """End it; its exit code."""
        if self._exit_code is None:
            self._connection.send(None)
            _, self._exit_code = self._connection.recv()
        self._connection.close()
        return self._exit_code


class _Forker:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.opencl.worker"],
            # The kernel collapses a heap into huge pages when it likes, which counts as memory
            # that a test of leaks has made resident.
            env=child_environment({"GLIBC_TUNABLES": None}),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()


@functools.cache
def _forker() -> _Forker:
    return _Forker()


@contextlib.contextmanager
def worker(environment: Mapping[str, object]) -> Iterator[Worker]:
    """A `Worker` for the length of a block; it has to end well."""
    started = Worker(environment)
    try:
        yield started
    except BaseException:
        started.close()
        raise
    assert started.close() == 0


def upload(values: np.ndarray) -> Tensor:
    """`values` on the OpenCL device."""
    return tvm.runtime.tensor(values, tvm.opencl(0))


def empty(shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
    """An uninitialised tensor on the OpenCL device."""
    return tvm.runtime.empty(shape, dtype, tvm.opencl(0))


def ramp(n: int, dtype: str = "float32") -> np.ndarray:
    """0, 1, … n - 1."""
    return np.arange(n).astype(dtype)


def settled_memory() -> dict[str, int]:
    """`memory()` without the tensors that only the garbage collector's next round would free."""
    import gc

    import tvm_edge.opencl

    gc.collect()
    return tvm_edge.opencl.memory()


def memory_kind() -> str:
    """Return this process's way of allocating on the device."""
    import tvm_edge.opencl

    return tvm_edge.opencl.device_info()["memory"]


def resident_mib() -> float:
    """Resident set of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def copied(function: Callable[[], Any]) -> dict[str, int]:
    """Bytes that a call copies."""
    import tvm_edge.opencl

    before = tvm_edge.opencl.copied()
    function()
    return {way: n - before[way] for way, n in tvm_edge.opencl.copied().items()}


def in_threads(body: Callable[[int], None]) -> None:
    """`body` in every thread at once; raises what the first of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def run(index: int) -> None:
        try:
            barrier.wait()
            body(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
