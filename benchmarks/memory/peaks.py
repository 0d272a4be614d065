"""Peak memory of a process that only loads an artifact and runs it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.paths import ROOT
from benchmarks.common.process_memory import Peak
from benchmarks.common.processes import child_command
from benchmarks.memory import jobs, nvml
from benchmarks.memory.limit import Limit

__all__ = ["measure_peak"]

_TIMEOUT = 900.0
_ALONE = {"TVM_USE_RUNTIME_LIB": "1", "TVM_EDGE_OPENCL_CACHE": "0"}


def measure_peak(
    artifact: Path,
    inputs: Path,
    *,
    frames: int,
    seconds: float = 600.0,
    pipelined: bool = False,
    copies: bool = False,
    limit: Limit | None = None,
) -> dict[str, Any]:
    """Run an artifact in a process of its own, and take its peak.

    With `copies` a device that is the CPU has weights, and memory, of its own, as any other GPU.

    Returns
    -------
    dict
        ``peak`` and ``device`` (bytes of the process, and of a GPU's own memory), and what the run
        said; ``failed`` if it did not live.
    """
    arguments = ("run", artifact, inputs, frames, seconds, pipelined, copies, artifact.parent)
    apart = {"TVM_EDGE_OPENCL_MEMORY": "buffer"} if copies else {}
    before = nvml.memory_in_use()
    with subprocess.Popen(
        child_command(jobs.__name__, *arguments),
        cwd=ROOT,
        env={**os.environ, **_ALONE, **apart},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit.enter if limit else None,
    ) as child:
        with Peak(child.pid) as peak, _device_peak(before) as device:
            try:
                out, err = child.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
                err += f"ended after {_TIMEOUT:.0f} s"
    found: dict[str, Any] = {"peak": peak.nbytes + device[0], "device": device[0]}
    if child.returncode == 0:
        return {**found, **json.loads(out.splitlines()[-1])}
    reason = (err.strip().splitlines() or ["no message"])[-1][:200]
    return {**found, "failed": f"exit status {child.returncode}: {reason}"}


@contextmanager
def _device_peak(before: int | None) -> Iterator[list[int]]:
    """Growth of the first GPU's memory in use, at its peak, meanwhile."""
    grown = [0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            grown[0] = max(grown[0], (nvml.memory_in_use() or 0) - (before or 0))

    thread = threading.Thread(target=sample, daemon=True)
    if before is not None:
        thread.start()
    try:
        yield grown
    finally:
        done.set()
        if before is not None:
            thread.join()
