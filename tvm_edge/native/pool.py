"""The worker pool of CPU kernels (``csrc/worker_pool.h``) under code that TVM compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tvm_edge.native.functions import native_function

__all__ = ["kernels_on_pool", "pool_counts", "use_pool"]


@cache
def _function(name: str) -> Any:
    return native_function(f"pool.{name}")


@contextmanager
def kernels_on_pool() -> Iterator[None]:
    """Context in which libraries are loaded, and modules are built, whose kernels use the pool.

    TVM gives code its launch function when it is loaded, code in memory at the first function that
    is looked up. Code of others keeps TVM's own pool, unless another thread loads it meanwhile.
    """
    _function("attach")()
    try:
        yield
    finally:
        _function("detach")()


def use_pool(threads: int, cpus: Sequence[int], capacity: int, spin_us: int) -> int:
    """Let kernels that the calling thread launches run on so many threads, itself counted.

    Parameters
    ----------
    threads : int
    cpus : sequence of int
        CPUs that workers keep to; empty for all that the process may use.
    capacity : int
        Threads that work at the same time, whoever launches kernels.
    spin_us : int
        Microseconds that a worker looks for the next kernel before it sleeps. The first use of
        these CPUs decides.

    Returns
    -------
    int
        Threads that kernels run on; fewer where the system refuses to start more, or the process
        may use fewer CPUs by now.
    """
    return int(_function("use")(threads, list(cpus), capacity, spin_us * 1000))


def pool_counts() -> dict[str, int]:
    """Counts since the process began, of all pools.

    Returns
    -------
    dict
        ``launches``; ``alone`` (of them, run by the launching thread); ``helped`` (times a worker
        joined one); ``wakes``; ``sleeps``; ``waited`` (launches that slept until a worker had
        finished its piece); ``workers``.
    """
    return {str(name): int(count) for name, count in _function("counts")().items()}
