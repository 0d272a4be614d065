"""Measurer of a run: processes of this machine, or boards."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tvm_edge.hardware import ResolvedTarget
from tvm_edge.tuning.device_lock import DeviceLock
from tvm_edge.tuning.fleet import Fleet
from tvm_edge.tuning.pool import Pool

__all__ = ["Boards", "Measurer", "make_measurer"]

_MOST_WORKERS = 16
_PER_WORKER = 4  # trials of a round for each process
_PER_BOARD = 8  # boards wait between rounds: the more of them, the longer a round has to be

Measurer = Pool | Fleet


@dataclass(frozen=True)
class Boards:
    """Boards to measure on.

    Attributes
    ----------
    tracker : str
        ``host:port`` of a tracker, or of a board's own server.
    key : str or None
        ``None`` for a server without a tracker.
    host : optional
        The CPU beside a GPU, as for :func:`tvm_edge.compile`.
    """

    tracker: str
    key: str | None
    host: Any


def make_measurer(
    resolved: ResolvedTarget, target: Any, boards: Boards | None, check: Callable[[], None]
) -> tuple[Measurer, int, Callable[[], AbstractContextManager[None]]]:
    """Return the measurer of a device.

    Parameters
    ----------
    resolved : ResolvedTarget
    target : str or dict
        As it was given.
    boards : Boards or None
        ``None`` for this machine.
    check : callable
        What it raises ends every wait.

    Returns
    -------
    Measurer
        To be entered.
    int
        Trials of a round.
    callable
        Gives the block in which the device is ours alone.

    Raises
    ------
    DeviceUnavailableError
        There is no tracker.
    """
    cores = len(os.sched_getaffinity(0))
    if boards is not None:
        builders = max(1, min(_MOST_WORKERS, cores))
        fleet = Fleet(target, boards.host, boards.tracker, boards.key, builders, check=check)
        # Each session has its board to itself: there is nothing to share.
        return (
            fleet,
            max(_PER_WORKER * max(cores - 1, 2), _PER_BOARD * fleet.sessions.size),
            nullcontext,
        )
    on_cpu = resolved.spec.has_cpu_cores  # OpenCL may be, too
    workers = max(1, min(_MOST_WORKERS, cores if on_cpu else cores - 1))
    threads = resolved.spec.cores if on_cpu else 1
    pool = Pool(target, workers, threads, beside=not on_cpu, check=check)
    return pool, _PER_WORKER * max(cores - 1, 2), DeviceLock(resolved.spec.key, check)
