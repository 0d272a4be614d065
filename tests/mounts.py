"""Small file systems for tests of full disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

__all__ = ["Mount", "leave_free", "mounting"]

Mount = Callable[[Path, str], None]


@contextmanager
def mounting() -> Iterator[Mount]:
    """Yield a function that mounts a tmpfs with options on a folder until the block ends."""
    with ExitStack() as stack:

        def mount(folder: Path, options: str) -> None:
            command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
            if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
                pytest.skip("mounting a tmpfs needs root and a namespace that allows it")
            stack.callback(subprocess.run, ["umount", str(folder)], check=True)

        yield mount


def leave_free(folder: Path, nbytes: int) -> None:
    """Fill a file system up to so many bytes, with a file called ``filler``."""
    filler = folder / "filler"
    filler.unlink(missing_ok=True)
    status = os.statvfs(folder)
    with filler.open("wb") as file:
        file.write(bytes(max(status.f_bavail * status.f_frsize - nbytes, 0)))
