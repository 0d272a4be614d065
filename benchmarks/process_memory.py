"""What a process takes that counts against a budget, as Linux counts it."""

from __future__ import annotations

import threading
from pathlib import Path

__all__ = ["Peak", "counted_bytes"]

_COUNTED = ("RssAnon:", "RssShmem:")
_SECONDS = 0.002


def counted_bytes(pid: int | str = "self") -> int:
    """Anonymous and shared memory of a process; pages of files that it only reads do not count.

    Raises
    ------
    OSError
        The process is gone, or this is not Linux.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))


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
