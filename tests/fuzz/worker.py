"""The process that damaged files are fed to, and the handle on it.

A file may kill the process that reads it, so each is read by a child:
``python -m tests.fuzz.worker`` takes one JSON request a line and answers one JSON line. The parent
notices a signal, silence for longer than a minute, and memory above :data:`MEMORY_LIMIT`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MEMORY_LIMIT", "SECONDS_PER_FILE", "Outcome", "Worker"]

ROOT = Path(__file__).parents[2]
SECONDS_PER_FILE = 60
MEMORY_LIMIT = 4 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Attributes
    ----------
    what : str
        ``ok``, the type of a ``TvmEdgeError``, or a finding: ``foreign``, ``crash``, ``hang``,
        ``memory``, ``wrong``.
    message : str
        The error's.
    where : str
        Type and place of a finding; equal findings agree in it.
    """

    what: str
    message: str = ""
    where: str = ""

    @property
    def finding(self) -> bool:
        """Whether this should not have happened."""
        return self.what in ("foreign", "crash", "hang", "memory", "wrong")

    @property
    def key(self) -> str:
        """What tells one finding from another."""
        return f"{self.what} {self.where}".strip()


class Worker:
    """A child process that is started again after every finding.

    Parameters
    ----------
    module : str
        What ``python -m`` runs: this module, or :mod:`tests.fuzz.oracle`.
    seconds : float
        Longest time for a file.
    """

    def __init__(
        self, module: str = "tests.fuzz.worker", seconds: float = SECONDS_PER_FILE
    ) -> None:
        self._module = module
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def feed(self, **request: Any) -> Outcome:
        """Send a request; the outcome, whatever happens to the child."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._errors.seek(0)
        self._errors.truncate()
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + self._seconds
        while not select.select([process.stdout], [], [], 0.05)[0]:
            if time.monotonic() > deadline:
                self._process = None
                return Outcome("hang", *self._ended(process))
            if _memory(process.pid) > MEMORY_LIMIT:
                self._process = None
                return Outcome("memory", *self._ended(process))
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self._process = None
            message, where = self._ended(process)
            fatal = [line for line in message.splitlines() if line.startswith("Fatal")]
            message += "\n" + (fatal or [""])[-1]
            return Outcome("crash", message, f"exit {code} {where}")
        answer = json.loads(line)
        if answer.pop("peak") > MEMORY_LIMIT:
            self.close()
            return Outcome("memory", answer["message"], "at its peak")
        return Outcome(**answer)

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TVM_EDGE_OPENCL_CACHE": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def _ended(self, process: subprocess.Popen[bytes]) -> tuple[str, str]:
        """The last words of a child, and the Python frame it died in."""
        if process.poll() is None:
            process.send_signal(6)  # faulthandler prints where it is
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        frames = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
        ours = next((f for f in frames if "tvm_edge" in f or "relay_passes" in f), "")
        return text[-4000:], _short(ours)


def _short(frame: str) -> str:
    path, _, rest = frame.partition(", ")
    return f"{Path(path.strip(chr(34))).name.rstrip(chr(34))} {rest.rpartition(' in ')[2]}".strip()


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


def serve(answer: Any, expected: type[Exception]) -> None:
    """Answer requests with ``answer(**request)`` until the input ends.

    `answer` returns an :class:`Outcome` or raises; `expected` is the type it may raise.
    """
    faulthandler.enable()
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            outcome = answer(**request)
        except expected as err:
            message = str(err)
            assert message, f"{type(err).__name__} without a message"
            outcome = Outcome(type(err).__name__, message)
        except Exception as err:
            outcome = Outcome("foreign", traceback.format_exc()[-6000:], _place(err))
        reply = {"what": outcome.what, "message": outcome.message, "where": outcome.where}
        replies.write(json.dumps({**reply, "peak": _peak()}) + "\n")
        replies.flush()


def _peak() -> int:
    """Largest memory of this process since it was asked last."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak << 10


def _place(err: BaseException) -> str:
    """Type of an exception, our innermost frame, and the innermost of all."""
    frames = traceback.extract_tb(err.__traceback__)
    names = [f"{Path(f.filename).name}:{f.name}" for f in frames]
    ours = [
        name
        for name, frame in zip(names, frames, strict=True)
        if any(part in frame.filename for part in ("tvm_edge/", "relay_passes/", "schedules/"))
    ]
    return f"{type(err).__name__} {(ours or names)[-1]} {names[-1]}"


def run_inputs(specs: Any, seed: int) -> dict[str, np.ndarray]:
    """Seeded inputs: normal floats with some special values, small integers with some large."""
    generator = np.random.default_rng(seed)
    special = generator.random() < 0.1
    values = {}
    for spec in specs:
        shape, dtype = spec.typical_shape, np.dtype(spec.dtype)
        if dtype.kind in "iu":
            value = generator.integers(0, 4, shape).astype(dtype)
            extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
        elif dtype.kind == "b":
            value, extremes = generator.integers(0, 2, shape).astype(bool), [True]
        else:
            value = np.asarray(2 * generator.standard_normal(shape)).astype(dtype)
            extremes = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30]
        if special and value.size and value.ndim:
            flat = value.reshape(-1)
            with np.errstate(all="ignore"):
                flat[generator.integers(flat.size)] = np.asarray(
                    extremes[generator.integers(len(extremes))]
                ).astype(dtype)
        values[spec.name] = value
    return values


def feed_model(path: str, seed: int, shapes: Any, save: str, target: str) -> Outcome:
    """Compile a file and run it once if it compiles to something of sensible size."""
    import tvm_edge

    content = Path(path).read_bytes()
    # External data is read beside a path only.
    model = tvm_edge.compile(
        path if b"location" in content else content, target, input_shapes=shapes or None
    )
    assert model.report.summary() and repr(model)
    if sum(math.prod(spec.typical_shape) for spec in model.inputs) > 1e6:
        return Outcome("ok", "too large to run")
    memory = model.report.memory
    if memory.weights + memory.peak > 2**28 or model.report.flops > 1e9:
        return Outcome("ok", "too large to run")
    inputs = run_inputs(model.inputs, seed)
    outputs = model.run(inputs)
    if save:
        _save(save, model, inputs, outputs)
    return Outcome("ok", "ran")


def _save(path: str, model: Any, inputs: Any, outputs: Any) -> None:
    arrays = {f"i{i}": inputs[spec.name] for i, spec in enumerate(model.inputs)}
    arrays |= {f"o{i}": outputs[spec.name] for i, spec in enumerate(model.outputs)}
    names = {"inputs": [s.name for s in model.inputs], "outputs": [s.name for s in model.outputs]}
    np.savez(path, names=json.dumps(names), **arrays)


def feed_artifact(path: str) -> Outcome:
    """Load a file; run it once, and read all it says of itself, if it loads."""
    import tvm_edge

    model = tvm_edge.load(path)
    assert model.report.summary() and repr(model)
    if sum(math.prod(spec.typical_shape) for spec in model.inputs) > 1e6:
        return Outcome("ok", "too large to run")
    model.run(run_inputs(model.inputs, 0))
    return Outcome("ok", "ran")


def feed_programs(path: str) -> Outcome:
    """Hand a file to the parser of built OpenCL kernels."""
    from tvm_edge import opencl

    try:
        opencl.load_programs(Path(path).read_bytes())
    except ValueError as err:  # what it documents; `load` makes an ArtifactError of it
        return Outcome("ValueError", str(err))
    return Outcome("ok")


def answer(
    kind: str,
    path: str,
    seed: int = 0,
    shapes: Any = None,
    save: str = "",
    target: str = "llvm",
) -> Outcome:
    """One request."""
    if kind == "model":
        return feed_model(path, seed, shapes, save, target)
    return {"artifact": feed_artifact, "programs": feed_programs}[kind](path)


if __name__ == "__main__":
    import tvm_edge

    serve(answer, tvm_edge.TvmEdgeError)
