"""Child processes of a benchmark: each measurement in a process of its own.

A benchmark's module runs itself: ``python -m benchmarks.NAME --child JOB ARGUMENTS``. The job
prints one JSON object on its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["Job", "is_child", "peak_mib", "run_child", "serve", "timed_runs"]

Job = Callable[..., dict[str, Any]]

_ROOT = Path(__file__).parents[1]
_LEAST_RUNS, _MOST_RUNS = 5, 5000


def run_child(module: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """What a job of a benchmark's module prints.

    Returns
    -------
    dict
        With the one key ``failed`` if the process failed: its status and the last line it wrote.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, "--child", *map(str, arguments)],
        cwd=_ROOT,
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


def is_child() -> bool:
    """Whether this process is to do a job."""
    return sys.argv[1:2] == ["--child"]


def serve(jobs: Mapping[str, Job]) -> None:
    """Do the job that the command line names, and print what it returns.

    The last argument of every job is the folder with its files.
    """
    job, *arguments, folder = sys.argv[2:]
    print(json.dumps(jobs[job](*arguments, Path(folder))))


def timed_runs(run: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each of the runs made in `seconds`, at least 5 and at most 5000."""
    samples: list[float] = []
    begin = perf_counter()
    while len(samples) < _LEAST_RUNS or (
        len(samples) < _MOST_RUNS and perf_counter() - begin < seconds
    ):
        start = perf_counter()
        run()
        samples.append(perf_counter() - start)
    return samples


def peak_mib() -> float:
    """The resident peak of this process so far, in MiB.

    ``getrusage`` would not do: a child that ``subprocess`` starts by vfork begins with its parent's
    peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    raise OSError("/proc/self/status has no line VmHWM")
