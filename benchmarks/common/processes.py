"""Child processes of a benchmark: each measurement in a process of its own.

A benchmark's module lists its jobs in ``JOBS``. ``python -m benchmarks.common.child MODULE JOB
ARGUMENTS FOLDER`` does one of them and prints what it returns as a JSON object, on the last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.common.paths import ROOT

__all__ = ["Job", "child_command", "require_child", "run_child"]

Job = Callable[..., dict[str, Any]]
"""Takes words of a command line, and last the folder with its files as a path."""


def child_command(module: str, *arguments: object) -> list[str]:
    """The command of a job; it runs in the folder ``ROOT``."""
    return [sys.executable, "-m", "benchmarks.common.child", module, *map(str, arguments)]


def run_child(module: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """Run a job of a module: its name, its arguments, its folder.

    Returns
    -------
    dict
        With the one key ``failed`` if the process failed: its status and the last line it wrote.
    """
    done = subprocess.run(
        child_command(module, *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"failed": f"exit status {done.returncode}: {reason[:200]}"}


def require_child(module: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """Run a job that the benchmark cannot go on without.

    Raises
    ------
    SystemExit
        It failed.
    """
    found = run_child(module, *arguments, **environment)
    if "failed" in found:
        raise SystemExit(f"{arguments[0]}: {found['failed']}")
    return found
