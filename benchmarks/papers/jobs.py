"""Jobs that measure what the papers' exhibits show, and how they are run.

Nothing is measured here: every job is the command line of another benchmark, whose JSON is kept as
it is, in the envelope of :mod:`benchmarks.papers.measurements`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any

from benchmarks.common.paths import ROOT
from benchmarks.common.processes import Job as ChildJob
from benchmarks.common.processes import run_child
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Measured

__all__ = ["Job", "describe", "jobs", "machine_here", "measure", "run_line"]

_HOURS = 4 * 3600.0

_ICPP = tuple(papers()["icpp19"].zoo.values())
_EMDL = tuple(papers()["emdl21"].zoo.values())
_CLASSIFIERS = ("resnet50_v1", "mobilenet_v1", "squeezenet1_0")  # of ICPP'19's Table 5
_YOLO = "yolov1,yolov1_medium,yolov1_small,yolov1_large"

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A run of a benchmark.

    Attributes
    ----------
    name : str
        With its device: ``"zoo-opencl"``.
    benchmark : str
        Its name in :mod:`benchmarks.catalogue`.
    arguments : tuple of str
    quick : tuple of str, optional
        Takes seconds on two cores, with pocl; by default the job is left out of a quick run.
    """

    name: str
    benchmark: str
    arguments: Arguments
    quick: Arguments | None = None

    def command(self, quick: bool = False) -> str:
        """Command as a user types it."""
        return " ".join(("python", *self._line(quick)))

    def _line(self, quick: bool) -> Arguments:
        own = (quick and self.quick) or self.arguments
        return ("-m", "benchmarks", "run", self.benchmark, *own)


def jobs(targets: Sequence[str], devices: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """All jobs of some devices, those first that take least time.

    Parameters
    ----------
    targets : sequence of {"llvm", "opencl", "cuda"}
    devices : mapping
        What :func:`describe` says of them.
    """
    found: list[Job] = []
    if "llvm" in targets:
        found += _of_cpu()
    for target in ("opencl", "cuda"):
        if target in targets:
            on_cpu = bool(devices.get(target, {}).get("on_cpu"))
            found += _of_gpu(target, on_cpu)
    strategies = ("--part", "strategies", "--networks", _YOLO, "--targets", ",".join(targets))
    small = ("--networks", "yolov1_small", "--targets", "llvm", "--frames", "2")
    found.append(Job("strategies-llvm", "memory", strategies, ("--part", "strategies", *small)))
    return found


def _of_cpu() -> list[Job]:
    few = ("--networks", "squeezenet1_0", "--rounds", "1", "--seconds", "0.3")
    return [
        Job("complexity-llvm", "operator_complexity", (), ("--networks", "mobilenet_v2")),
        Job("cpu-llvm", "cpu", ("--networks", *_ICPP, "--rounds", "3"), few),
        Job("layers-llvm", "memory", ("--part", "layers", "--networks", f"vgg19,vgg16,{_YOLO}")),
        Job(
            "tuning-llvm",
            "tuning",
            ("--part", "networks", "--target", "llvm", "--networks", *_CLASSIFIERS),
        ),
    ]


def _of_gpu(target: str, on_cpu: bool) -> list[Job]:
    own = ("--target", target)
    networks = tuple(dict.fromkeys((*_ICPP, *_EMDL)))
    # pocl builds a kernel anew for each size.
    sample = ("--most", "36") if on_cpu else ()

    def quick(*arguments: str) -> Arguments | None:
        return arguments if target == "opencl" else None

    once = ("--rounds", "1")
    found = [
        Job(
            f"workgroup-{target}",
            "workgroup",
            (*own, *sample),
            quick(*own, "--layers", "1", "11", "--most", "3"),
        ),
        Job(
            f"groups-{target}",
            "parallel_fusion",
            ("--part", "groups", *own),
            quick("--part", "groups", *own, "--rows", "0", "16", *once),
        ),
        Job(
            f"zoo-{target}",
            "zoo",
            ("--networks", *networks, "--targets", target),
            quick("--networks", "squeezenet1_0", "--targets", target, *once),
        ),
        Job(f"identical-{target}", "parallel_fusion", ("--part", "identical", *own)),
        *(
            Job(f"{part}-{target}", "parallel_models", ("--part", part, *own))
            for part in ("temporal", "flat", "models")
        ),
    ]
    if target == "cuda":
        cudnn = ("--networks", *_CLASSIFIERS)
        found.append(Job("gpu-cuda", "gpu", cudnn))
        found.append(Job("tuning-cuda", "tuning", ("--part", "networks", *own, *cudnn)))
    return found


def describe(_folder: Path) -> dict[str, Any]:
    """A child's job: this machine and its devices."""
    import tvm_edge
    from benchmarks.common.machine import describe_machine

    kept = ("name", "peak_gflops", "unified_memory", "on_cpu")
    devices: dict[str, Any] = {}
    for device in tvm_edge.devices():
        found = {**device.details, "name": device.name}
        devices.setdefault(device.target, {key: found.get(key) for key in kept})
    return {**describe_machine(), "devices": devices}


def machine_here() -> dict[str, Any]:
    """This machine, by a process that ends: this one opens no device.

    Raises
    ------
    SystemExit
        It cannot be described, or ONNX Runtime is not installed: no benchmark would run.
    """
    if find_spec("onnxruntime") is None:
        raise SystemExit("onnxruntime is not installed; run: pip install -e '.[bench]'")
    found = run_child(__name__, "describe", ROOT)
    if "failed" in found:
        raise SystemExit(f"tvm-edge does not run here: {found['failed']}; run: tvm-edge doctor")
    return found


def measure(
    job: Job, machine: Mapping[str, Any], folder: Path, *, quick: bool, seconds: float = _HOURS
) -> Measured:
    """Run a job for so long at most; what it prints goes to ``<job>.log`` in the folder."""
    with tempfile.TemporaryDirectory(prefix="tvm-edge-papers-") as temporary:
        path = Path(temporary, "result.json")
        line = [sys.executable, *job._line(quick), "--json", str(path)]
        with (folder / f"{job.name}.log").open("w", encoding="utf-8") as log:
            reason = run_line(line, log, seconds)
        try:
            result = loads(path.read_text(encoding="utf-8"))
        except (OSError, JSONDecodeError):
            result = None
    if result is None and not reason:
        reason = "it wrote no result"
    return Measured(
        job=job.name,
        command=job.command(quick),
        machine=machine,
        commit=_commit(),
        quick=quick,
        cut_off=bool(reason and result is not None),
        result=result,
        failed="" if result is not None else _last_line(reason, folder / f"{job.name}.log"),
    )


def run_line(line: Sequence[str], log: Any, seconds: float) -> str:
    """Run a command; return why it did not end well, nothing if it did."""
    # A session of its own: benchmarks have children, which a time limit has to end as well.
    process = subprocess.Popen(
        line, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"no result after {seconds:.3g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"exit status {status}" if status else ""


def _last_line(reason: str, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{reason}: {lines[-1][:200]}" if lines else reason


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


JOBS: dict[str, ChildJob] = {"describe": describe}
