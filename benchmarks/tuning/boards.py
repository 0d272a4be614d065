"""Growth of tuning with the number of boards.

Servers of this machine serve one key, each a sleep of ``--sleep`` seconds in place of the time of
kernels, with the way a candidate takes left as it is: built and linked here, sent to a free board,
loaded there, its result checked, then the sleep. One, two and four boards take turns; trials a
second are those between the end of the first round and that of the last.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser
from benchmarks.common.paths import ROOT
from benchmarks.common.processes import Job, child_command
from benchmarks.common.text import spread

_COUNTS = (1, 2, 4)
_NETWORK = "zoo:mobilenet_v1"
_TRIALS = 32  # of each board
_KEY = "sleeping"
_BARS = {2: 1.8, 4: 3.5}


def _serve(tracker: str, port: str, sleep: str, folder: Path) -> dict[str, Any]:
    """A job: a board that sleeps instead of timing."""
    import logging

    from tvm_edge.rpc import listener
    from tvm_edge.rpc.address import parse_address
    from tvm_edge.runtime.candidates import Candidate

    def latencies(_own: Candidate, rounds: int, _seconds: float, _hopeless: float) -> list[float]:
        time.sleep(float(sleep))
        return [float(sleep)] * rounds

    Candidate.latencies = latencies
    at = parse_address(tracker)
    level = logging.WARNING
    first = int(port)
    given = listener.Listen("127.0.0.1", first, first + 1, at, _KEY, folder, level)
    listener._server(given, listener._listening(given)).join()
    return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(command: Sequence[str]) -> Iterator[None]:
    started = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield
    finally:
        import psutil

        children = psutil.Process(started.pid).children(recursive=True)
        for each in (*children, psutil.Process(started.pid)):
            each.kill()
        started.wait()


def _served(tracker: str) -> int:
    from tvm_edge.errors import DeviceUnavailableError
    from tvm_edge.rpc.address import parse_address
    from tvm_edge.rpc.tracker import served_keys

    try:
        found = served_keys(parse_address(tracker)).get(_KEY)
    except DeviceUnavailableError:
        return 0
    return found.free if found else 0


def measure(count: int, sleep: float, folder: Path) -> dict[str, Any]:
    """A run on so many boards."""
    import tvm_edge

    port = _free_port()
    tracker = f"127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1), "--silent"]
    with ExitStack() as stack:
        stack.enter_context(_process([sys.executable, "-m", "tvm.exec.rpc_tracker", *place]))
        for _ in range(count):
            board = child_command(__name__, "serve", tracker, _free_port(), sleep, folder)
            stack.enter_context(_process(board))
        while _served(tracker) < count:
            time.sleep(0.1)
        seen: list[tuple[int, float]] = []

        def note(at: Any) -> None:
            seen.append((at.trials, at.seconds))
            if at.trials >= at.total:
                raise KeyboardInterrupt  # without the last round, which is on one board

        result = tvm_edge.tune(
            _NETWORK,
            "llvm",
            trials=_TRIALS * count,
            tracker=tracker,
            key=_KEY,
            tuning_logs=folder / f"records{time.monotonic_ns()}",
            callbacks=[note],
        )
    assert result.failed == 0, result.errors
    trials, seconds = (seen[-1][i] - seen[0][i] for i in (0, 1))
    return {"rate": trials / seconds, "trials": result.trials, "seconds": result.seconds}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("boards", __doc__)
    parser.shared(rounds=3)
    parser.add_argument("--sleep", type=float, default=1.0)
    options = parser.parse_args(arguments)
    print(json.dumps(describe_machine()))
    rates: dict[int, list[float]] = {count: [] for count in _COUNTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for count, own in rates.items():
                found = measure(count, options.sleep, Path(folder))
                own.append(found["rate"])
                print(count, json.dumps(found), flush=True)
    print("| boards | trials a second | growth | bar |\n|---|---|---|---|")
    for count, own in rates.items():
        growth = median(own) / median(rates[1])
        bar = f">= {_BARS[count]}" if count in _BARS else ""
        print(f"| {count} | {spread(own, '.2f')} | **{growth:.2f}** | {bar} |")


JOBS: dict[str, Job] = {"serve": _serve}
