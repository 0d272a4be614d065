"""Lock of a device: one process of a user measures on it at a time."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["DeviceLock"]

_LOG = logging.getLogger("tvm_edge.tuning")

_CHECK_SECONDS = 0.1


class DeviceLock:
    """Lock that all of a user's tuners of one device share.

    They take turns, a round each: two at a time would disturb each other. It is in the temporary
    folder, as they share the device and not a folder of records.

    Parameters
    ----------
    key : str
        Of the device.
    check : callable
        Called while another process has the device; what it raises ends the wait.
    """

    def __init__(self, key: str, check: Callable[[], None] = lambda: None) -> None:
        name = hashlib.sha256(f"{os.getuid()} {key}".encode()).hexdigest()[:16]
        self.path = Path(tempfile.gettempdir()) / f"tvm-edge-device-{name}.lock"
        self._lock, self._check, self._key = FileLock(self.path), check, key
        self._waited = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the device while the block runs."""
        while True:
            self._check()
            try:
                self._lock.acquire(timeout=_CHECK_SECONDS)
            except Timeout:
                if not self._waited:
                    _LOG.warning("another process tunes %s; they take turns", self._key)
                self._waited = True
            else:
                break
        try:
            yield
        finally:
            self._lock.release()
