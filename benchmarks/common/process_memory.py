"""Memory of a process, as Linux counts it."""

from __future__ import annotations

import threading
from pathlib import Path

__all__ = ["Peak", "counted_bytes", "peak_mib", "status_bytes"]

_COUNTED = ("RssAnon", "RssShmem")
_SECONDS = 0.002


def status_bytes(pid: int | str = "self") -> dict[str, int]:
    """Return the sizes in ``/proc/PID/status`` by name, in bytes.

    Raises
    ------
    OSError
        The process is gone, or this is not Linux.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in fields}


def counted_bytes(pid: int | str = "self") -> int:
    """Anonymous and shared memory, which count against a budget.

    Pages of files that the process only reads do not.

    Raises
    ------
    OSError
        The process is gone, or this is not Linux.
    """
    found = status_bytes(pid)
    return sum(found.get(name, 0) for name in _COUNTED)


def peak_mib() -> float:
    """The resident peak of this process so far, in MiB.

    ``getrusage`` would not do: a child that ``subprocess`` starts by vfork begins with its parent's
    peak.
    """
    return status_bytes()["VmHWM"] / 2**20


class Peak:
    """The largest :func:`counted_bytes` of a process while a block runs, sampled every 2 ms.

    The kernel keeps a peak of all resident memory alone.

    Attributes
    ----------
    nbytes : int
    """

    def __init__(self, pid: int) -> None:
        self.nbytes = 0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_SECONDS):
            try:
                self.nbytes = max(self.nbytes, counted_bytes(self._pid))
            except OSError:  # it has ended
                return
