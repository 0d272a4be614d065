"""Threads of kernels: their number, and the CPUs that they run on."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from typing import Any

from tvm_edge.errors import InputError
from tvm_edge.host import allowed_cpus, cpu_quota, physical_cores
from tvm_edge.native import use_pool
from tvm_edge.runtime.once import once

__all__ = ["Threads", "resolve_num_threads", "resolve_threads"]

_LOG = logging.getLogger("tvm_edge.runtime")

_MOST_THREADS = 1024

_SPIN_US = 50
"""Between two kernels of a run the virtual machine takes less."""


class Threads:
    """Threads that run a model's kernels, the one that runs the model counted.

    Parameters
    ----------
    count : int
    cpus : sequence of int
        CPUs that they keep to; empty for all that the process may use.
    """

    def __init__(self, count: int, cpus: Sequence[int] = ()) -> None:
        self.count = count
        self.cpus = tuple(cpus)

    @once
    def capacity(self) -> int:
        """Threads that work at the same time, whoever launches kernels."""
        return max(self.count, physical_cores(self.cpus or None))

    @property
    def spin_ns(self) -> int:
        """Nanoseconds that a worker looks for the next kernel before it sleeps."""
        return _spin_us() * 1000

    def use(self) -> None:
        """Let kernels that the calling thread launches run on these threads.

        All models of a process share one pool of workers for each set of CPUs.
        """
        there = use_pool(self.count, self.cpus, self.capacity, _spin_us())
        if there < self.count:
            _warn_of_fewer(
                self.count,
                there,
                "the process may use no more CPUs by now, or start no more threads (ulimit -u)",
            )


def resolve_threads(num_threads: int | None, cpus: Sequence[int] | None = None) -> Threads:
    """Return the threads of a model.

    Parameters
    ----------
    num_threads : int, optional
        As of :func:`resolve_num_threads`; more than CPUs are taken as that many.
    cpus : sequence of int, optional
        Logical CPUs to keep to, by Linux's numbers.

    Raises
    ------
    InputError
        Of `num_threads`, or CPUs that do not exist or that the process may not use.
    """
    chosen = _checked_cpus(cpus)
    count = resolve_num_threads(num_threads, chosen)
    most = len(chosen or allowed_cpus())
    if count > most:
        _warn_of_fewer(count, most, "each has a CPU of its own")
        count = most
    return Threads(count, chosen or ())


def resolve_num_threads(num_threads: int | None, cpus: Sequence[int] | None = None) -> int:
    """The number of threads to use.

    Parameters
    ----------
    num_threads : int, optional
        Number that the caller asked for. Default: ``TVM_NUM_THREADS``, else every physical core
        that the process may use, by its affinity and the quota of its control group.
    cpus : sequence of int, optional
        CPUs to which the default is limited.

    Raises
    ------
    InputError
        Not a positive number, or one that no machine has cores for.
    """
    if num_threads is None:
        value = os.environ.get("TVM_NUM_THREADS", "")
        if not value:
            _warn_of_small_quota()
            return physical_cores(cpus)
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


def _checked_cpus(cpus: Any) -> tuple[int, ...] | None:
    if cpus is None:
        return None
    allowed = allowed_cpus()
    what = f"this process may use {_ranges(allowed)}"
    good = (
        isinstance(cpus, Sequence)
        and not isinstance(cpus, str)
        and all(isinstance(cpu, Integral) and not isinstance(cpu, bool) for cpu in cpus)
    )
    if not good or not cpus:
        raise InputError(
            f"cpus is {cpus!r}, and must be a list of CPUs by their numbers; {what}",
            name="cpus",
            expected="a list of integers",
            got=repr(cpus),
        )
    chosen = tuple(sorted({int(cpu) for cpu in cpus}))
    missing = [cpu for cpu in chosen if cpu not in allowed]
    if missing:
        exist = os.cpu_count() or 1
        why = "do not exist" if min(missing) >= exist else "are not allowed or do not exist"
        raise InputError(
            f"cpus has {', '.join(map(str, missing))}, which {why} here; {what}",
            name="cpus",
            expected=f"CPUs among {_ranges(allowed)}",
            got=repr(list(cpus)),
        )
    return chosen


def _ranges(cpus: Sequence[int]) -> str:
    """CPUs as Linux writes them: "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in parts)


@cache
def _spin_us() -> int:
    value = os.environ.get("TVM_EDGE_SPIN", "")
    if not value:
        return _SPIN_US
    if not value.isdecimal() or int(value) > 1_000_000:
        raise InputError(
            f"the environment variable TVM_EDGE_SPIN is {value}, and must be the microseconds, at "
            "most 1000000, that a worker looks for the next kernel before it sleeps",
            name="TVM_EDGE_SPIN",
            expected="0 to 1000000",
            got=value,
        )
    return int(value)


@cache  # once
def _warn_of_fewer(wanted: int, there: int, why: str) -> None:
    _LOG.warning("%d threads were asked for and kernels run on %d: %s", wanted, there, why)


@cache
def _warn_of_small_quota() -> None:
    quota = cpu_quota()
    if quota is not None and quota < 1:
        _LOG.warning(
            "the CPU quota of this process's control group is %.2f of a core: kernels run on one "
            "thread, which is stopped for a part of each period; raise the quota (cpu.max)",
            quota,
        )
