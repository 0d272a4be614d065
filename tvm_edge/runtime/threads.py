"""Worker threads of kernels: their number, and the CPUs that they run on."""

from __future__ import annotations

import logging
import os
import threading
from numbers import Integral

import tvm_ffi

from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.host import allowed_cpus, physical_cores

__all__ = ["configure_pool", "resolve_num_threads"]

_LOG = logging.getLogger("tvm_edge.runtime")

# TVM's AffinityMode::kSpecifyThreadShareAllCore. Its other modes pin each worker to one CPU and
# leave the calling thread free; when that one lands on a worker's CPU, every kernel has twice the
# latency. Threads that may roam are spread by the operating system.
_SHARE_ALL_CORES = -3

_MOST_THREADS = 1024

_configured = threading.local()


def resolve_num_threads(num_threads: int | None) -> int:
    """The number of threads to use.

    Parameters
    ----------
    num_threads : int, optional
        What the caller asked for. Default: ``TVM_NUM_THREADS``, else every physical core that the
        process may use.

    Raises
    ------
    InputError
        Not a positive number, or one that no machine has cores for.
    """
    if num_threads is None:
        value = os.environ.get("TVM_NUM_THREADS", "")
        if not value:
            return physical_cores()
        source, good = "the environment variable TVM_NUM_THREADS", value.isdecimal()
    else:
        # A string is refused: where a number was meant, something went wrong before.
        source, value = "num_threads", repr(num_threads)
        good = isinstance(num_threads, Integral) and not isinstance(num_threads, bool)
        if good:
            value = str(int(num_threads))
    if not good or not 1 <= int(value) <= _MOST_THREADS:
        raise InputError(
            f"{source} is {value}, and must be a positive number of at most {_MOST_THREADS}; "
            f"this machine has {physical_cores()} physical cores",
            name="num_threads",
            expected="a positive integer",
            got=value,
        )
    return int(value)


def configure_pool(num_threads: int, *, grows: bool = True) -> None:
    """Give the calling thread a TVM worker pool of `num_threads`.

    TVM keeps one pool per thread that launches kernels and makes it at first use with half the
    logical CPUs on x86, whatever the number of physical cores.

    Parameters
    ----------
    num_threads : int
    grows : bool
        Whether the thread may want more later. The pool then has a worker for every CPU from the
        beginning, and each of them spins for a tenth of a second before it sleeps.

    Raises
    ------
    DeviceUnavailableError
        The thread's pool was left behind by a fork: kernels would wait for it for ever.
    """
    if getattr(_configured, "process", os.getpid()) != os.getpid():
        raise DeviceUnavailableError(
            "this thread ran a model before the process forked, and its worker threads stayed "
            "behind; run models in a new thread of the child, or use multiprocessing's 'spawn'"
        )
    if getattr(_configured, "num_threads", None) == num_threads:
        return
    cpus = allowed_cpus()
    # The length of the list is the pool's capacity, so let it hold the threads asked for.
    capacity = max(num_threads, len(cpus)) if grows else num_threads
    wanted = [cpus[i % len(cpus)] for i in range(capacity)]
    tvm_ffi.get_global_func("runtime.config_threadpool")(
        _SHARE_ALL_CORES, num_threads, [str(cpu) for cpu in wanted]
    )
    actual = int(tvm_ffi.get_global_func("runtime.NumThreads")())
    if actual < num_threads:
        _LOG.warning(
            "this thread already had a TVM worker pool of %d threads and cannot grow it to %d; "
            "set TVM_NUM_THREADS=%d before the process starts",
            actual,
            num_threads,
            num_threads,
        )
    _configured.num_threads, _configured.process = num_threads, os.getpid()
