"""Child processes, threads and edited artifacts: for tests of the runtime and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx_models import make_model
from tvm_edge.runtime.session import Session

ROOT = Path(__file__).resolve().parents[2]
FORK_TIMEOUT_S = 10

BLOCK_IMPORTS = """
import sys

class _Blocked:
    def find_spec(self, name, path=None, target=None):
        for blocked in BLOCKED:
            if name == blocked or name.startswith(blocked + "."):
                raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, _Blocked())
"""
"""A prelude that hides the packages listed in ``BLOCKED``."""


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment with the repository importable; ``None`` removes a variable."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    merged.update(changes or {})
    return {name: value for name, value in merged.items() if value is not None}


def run_child(
    arguments: list[str],
    *,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments`."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=child_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def run_python(
    code: str,
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    blocked: tuple[str, ...] = (),
) -> str:
    """Run `code` in a fresh Python that cannot import `blocked`; return its standard output."""
    prelude = f"BLOCKED = {blocked!r}\n{BLOCK_IMPORTS}" if blocked else ""
    done = run_child(["-c", prelude + code, *map(str, arguments)], environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A new control group with a limit of memory, of either version; skips where none can be had.

    Whoever is to be in it writes the limit to ``limit`` and its process id to ``cgroup.procs`` of
    what this yields: links to the group's files.
    """
    for parent, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = parent / f"tvm-edge-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists() and os.access(group / limit, os.W_OK):
                with tempfile.TemporaryDirectory() as folder:
                    links = Path(folder)
                    (links / "limit").symlink_to(group / limit)
                    (links / "cgroup.procs").symlink_to(group / "cgroup.procs")
                    yield links
                return
        finally:
            group.rmdir()
    pytest.skip("no memory control group can be made here")


def rewrite_artifact(
    source: Path, target: Path, edit: Callable[[dict[str, Any]], None] = lambda manifest: None
) -> Path:
    """Copy an artifact with any ZIP tool's layout, its manifest changed by `edit`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                edit(manifest)
                content = json.dumps(manifest).encode()
            new.writestr(name, content)
    return target


def wide_conv(seed: int = 0) -> onnx.ModelProto:
    """A convolution with enough work to be shared between threads, 32×56×56 in."""
    weight = np.random.default_rng(seed).standard_normal((64, 32, 3, 3)).astype("float32")
    return make_model(
        [
            helper.make_node("Conv", ["data", "weight"], ["sum"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["sum"], ["result"], name="relu"),
        ],
        {"data": (1, 32, 56, 56)},
        ["result"],
        {"weight": weight},
    )


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """The results of actions that start together, each in a thread of its own."""
    barrier = threading.Barrier(len(actions))

    def start(action: Callable[[], Any]) -> Any:
        barrier.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(start, actions))


def in_forked_child(action: Callable[[], object]) -> str:
    """Name of the error that `action` raises in a forked child, ``"done"``, or ``"hung"``."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            outcome = "done"
        except BaseException as err:
            outcome = type(err).__name__
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + FORK_TIMEOUT_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            os.close(reader)
            return "hung"
        time.sleep(0.01)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def until(holds: Callable[[], Any]) -> Any:
    """Wait until `holds` returns something true, and return that."""
    end = time.monotonic() + 30
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return found


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have runs that begin meanwhile wait for the event."""
    may_run, run = threading.Event(), Session.run

    def waiting(*arguments: Any) -> Any:
        assert may_run.wait(30)
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", waiting)
        yield may_run
