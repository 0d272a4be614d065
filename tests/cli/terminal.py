"""The command on a terminal of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.runtime.support import child_environment

_STOP_TIMEOUT_S = 30


def on_a_terminal(arguments: list[str], folder: Path) -> tuple[str, str]:
    """What ``tvm-edge`` shows on standard error, a terminal, and prints on standard output."""
    leader, follower = pty.openpty()
    path = folder / "stdout"
    with path.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "tvm_edge", *arguments],
            env=child_environment({"TERM": "xterm", "COLUMNS": "160"}),
            stdout=stdout,
            stderr=follower,
        )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # EIO once the process has closed the terminal
        while chunk := os.read(leader, 1 << 16):
            shown += chunk
    os.close(leader)
    assert process.wait(_STOP_TIMEOUT_S) == 0
    return shown.decode(), path.read_text()
