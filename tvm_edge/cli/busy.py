"""Busy processes beside a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["busy_processes"]

# Ends with the process that started it, however that ends (PR_SET_PDEATHSIG, SIGKILL).
_CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    print(flush=True)
    while True:
        pass
"""


@contextmanager
def busy_processes(count: int, cpus: Sequence[int] | None) -> Iterator[list[int]]:
    """Context in which so many processes have something to do all the time; yields their numbers.

    Parameters
    ----------
    count : int
    cpus : sequence of int, optional
        Where they run; default all CPUs that this process may use.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", _CODE, str(os.getpid())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            started.append(process)
            if cpus:
                os.sched_setaffinity(process.pid, cpus)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it is busy
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
