"""Kills at random moments of tuning, exporting, uploading and writing of the program cache.

Processes are forked from one that has loaded what they need, begin, and are killed. Then it is
looked whether anything was lost (the old file, records, entries), and, after the next start,
whether anything was left. Prints a table and one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser

_BEGIN_SECONDS = 60.0
_BYTES = 3 << 20  # of a file that is uploaded


def forked(body: Callable[[], object]) -> int:
    """Run in a forked process, in a group of its own; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        body()
        status = 0
    except BaseException as err:
        print(f"{type(err).__name__}: {err}", file=sys.stderr)
    finally:
        os._exit(status)


def finished(body: Callable[[], object]) -> bool:
    """Run in a forked process to the end; returns whether it went well."""
    return os.waitstatus_to_exitcode(os.waitpid(forked(body), 0)[1]) == 0


def killed(
    body: Callable[[], object], seconds: float, begun: Callable[[], object] = lambda: True
) -> None:
    """Run in a forked process, and kill it so long after it has begun; its children end, too."""
    pid = forked(body)
    end = time.monotonic() + _BEGIN_SECONDS
    while not begun() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def leftovers(folder: Path) -> list[str]:
    """Names of what only a process that is gone could want."""
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.name.startswith(("tvm-edge-", ".tvm-edge-", ".writing-"))
        and not path.name.endswith(".lock")
    )


class Export:
    """A model over another one."""

    seconds = 0.02

    def __init__(self, folder: Path) -> None:
        import tvm_edge
        from tests.onnx_models import conv_relu

        self.folder = folder / "export"
        self.folder.mkdir()
        self.target = self.folder / "model.tvme"
        sources = [folder / f"{number}.tvme" for number in range(2)]
        for number, path in enumerate(sources):
            tvm_edge.compile(conv_relu(number), "llvm").export(path)
        self.models = [tvm_edge.load(path, copy=True) for path in sources]
        self.contents = {path.read_bytes() for path in sources}
        self.target.write_bytes(sources[0].read_bytes())

    def begin(self) -> None:
        for number in range(10_000):
            self.models[number % 2].export(self.target)

    def problems(self) -> Iterator[str]:
        if self.target.read_bytes() not in self.contents:
            yield "the artifact is neither the old nor the new one"

    def next_start(self) -> None:
        self.models[0].export(self.target)


class Upload:
    """A file in pieces, as a session of a board stores it."""

    seconds = 0.05

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "upload"
        self.content = np.random.default_rng(0).integers(0, 256, _BYTES, np.uint8)
        self.stored = hashlib.sha256(self.content.tobytes()).hexdigest()
        self.next_start()

    def _send(self, content: np.ndarray) -> None:
        from tvm_edge.rpc.uploads import Uploads

        store = Uploads(self.folder).functions()["store"]
        digest = hashlib.sha256(content.tobytes()).hexdigest()
        piece = 1 << 16
        for offset in range(0, content.size, piece):
            part = {"content": content[offset : offset + piece]}
            store(part, digest=digest, offset=offset, last=offset + piece >= content.size)

    def begin(self) -> None:
        for number in range(10_000):
            self._send(np.roll(self.content, number))

    def problems(self) -> Iterator[str]:
        for path in self.folder.iterdir():
            if not path.name.startswith("."):
                if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
                    yield "a file is not what its name says"
        if not (self.folder / self.stored).exists():
            yield "the file that was there is gone"

    def next_start(self) -> None:
        self._send(self.content)


class ProgramCache:
    """Programs of OpenCL kernels, built by this machine's driver; most kills come as it builds."""

    seconds = 0.6

    def __init__(self, folder: Path) -> None:
        from tests.opencl import programs

        self.folder = folder / "cache"
        self.modules = folder / "modules"
        self.modules.mkdir()
        for number in range(6):
            name = f"add_{number}"
            code = programs.ADD_ONE_SOURCE.replace("add_one", name)
            signature = (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))
            content = programs.module_bytes(code, {name: signature})
            (self.modules / name).write_bytes(content)
        os.environ["TVM_EDGE_OPENCL_CACHE"] = str(self.folder)

    def _run(self) -> dict[str, int]:
        from tests.opencl.cache_child import run_both

        return run_both(self.modules)

    def begin(self) -> None:
        for path in self.folder.glob("*.clbin"):
            path.unlink()
        self._run()

    def problems(self) -> Iterator[str]:
        def sound() -> None:
            stats = self._run()
            if stats["damaged"]:
                raise ValueError(f"damaged entries: {stats}")

        if not finished(sound):
            yield "an entry is damaged"

    def next_start(self) -> None:
        self._run()


class Tune:
    """A run that goes on where the one before was killed."""

    seconds = 2.0

    def begun(self, temporary: Path) -> bool:
        """Return whether candidates are being measured."""
        return any("tvm-edge-tune-" in path.name for path in temporary.iterdir())

    def __init__(self, folder: Path) -> None:
        import onnx

        from tests.runtime.support import wide_conv

        self.folder = folder / "records"
        self.model = folder / "small.onnx"
        onnx.save(wide_conv(), self.model)
        self.known = 0
        self.seed = 0

    def _tune(self, trials: int) -> None:
        import tvm_edge

        tvm_edge.tune(
            self.model,
            "llvm",
            trials=trials,
            tuning_logs=self.folder,
            resume=True,
            seed=self.seed,
        )

    def begin(self) -> None:
        self._tune(1000)

    def problems(self) -> Iterator[str]:
        from tvm_edge.records import Database

        for path in self.folder.rglob("*.sqlite3"):
            with Database(path) as database:
                yield from (str(damage) for damage in database.damages())
                count = database.counts().records
            if count < self.known:
                yield f"{self.known} records became {count}"
            self.known = count
        if list(self.folder.rglob("*.damaged-*")):
            yield "a database was set aside"
        self.seed += 1

    def next_start(self) -> None:
        self._tune(1)


def main(arguments: Sequence[str]) -> None:
    """Kill, look, start again, look."""
    kinds: dict[str, Callable[[Path], Any]] = {
        "export": Export,
        "upload": Upload,
        "cache": ProgramCache,
        "tune": Tune,
    }
    parser = Parser("kills", __doc__)
    parser.add_argument("--kills", type=int, default=50, help="of each kind (50)")
    parser.add_argument("--kinds", nargs="*", default=list(kinds), choices=list(kinds))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    rng = random.Random(asked.seed)
    result: dict[str, Any] = {"kinds": {}}
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name) / "tmp"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        for kind in asked.kinds:
            case = kinds[kind](Path(name))
            lost: list[str] = []
            half = 0
            for _ in range(asked.kills):
                begun = getattr(case, "begun", lambda _folder: True)
                seconds = rng.random() * case.seconds
                killed(case.begin, seconds, lambda: begun(temporary))  # noqa: B023
                half += bool(leftovers(temporary) or leftovers(case.folder))
                lost += case.problems()
                if not finished(case.next_start):
                    lost.append("the next start failed")
                lost += [f"left: {each}" for each in leftovers(temporary)]
                lost += [f"left: {each}" for each in leftovers(case.folder)]
            result["kinds"][kind] = {
                "kills": asked.kills,
                "left_something_half_done": half,
                "lost_or_left_after_the_next_start": lost,
            }
            print(kind, result["kinds"][kind], file=sys.stderr)
    print(json.dumps({"machine": describe_machine(), **result}, indent=2))
