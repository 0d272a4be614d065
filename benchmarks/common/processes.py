"""Child processes of a benchmark: each measurement in a process of its own.

A benchmark's module lists its jobs in ``JOBS``. ``python -m benchmarks.common.child MODULE JOB
ARGUMENTS FOLDER`` does one of them and prints what it returns as a JSON object, on the last line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.common.paths import ROOT

__all__ = ["Job", "child_command", "require_child", "run_child", "run_child_within"]

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
    return run_child_within(None, module, *arguments, **environment)


def run_child_within(
    seconds: float | None, module: str, *arguments: object, **environment: str
) -> dict[str, Any]:
    """Run a job that is ended after a time, with all processes that it started.

    Parameters
    ----------
    seconds : float or None
        ``None`` for any time.
    module, *arguments, **environment
        As of :func:`run_child`.

    Returns
    -------
    dict
        As of :func:`run_child`.
    """
    process = subprocess.Popen(
        child_command(module, *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=seconds is not None,  # a compiler that it started ends with it
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {seconds:.0f} s"}
    finally:
        if process.poll() is None:  # late, or this process is interrupted
            if seconds is None:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result
    reason = (errors.strip().splitlines() or ["no message"])[-1]
    return {"failed": f"exit status {process.returncode}: {reason[:200]}"}


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
