"""How tuning grows with boards: ``python -m benchmarks.boards``.

Servers of this machine serve one key, each a sleep of ``--sleep`` seconds in place of the time of
kernels, with the way a candidate takes left as it is: built and linked here, sent to a free board,
loaded there, its result checked, then the sleep. One, two and four boards take turns; trials a
second are those between the end of the first round and that of the last.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine

_COUNTS = (1, 2, 4)
_NETWORK = "zoo:mobilenet_v1"
_TRIALS = 32  # of each board
_KEY = "sleeping"
_BARS = {2: 1.8, 4: 3.5}


def serve(tracker: str, port: int, sleep: float, folder: str) -> None:
    """A board that sleeps instead of timing."""
    import logging

    from tvm_edge.rpc import listener
    from tvm_edge.rpc.address import parse_address
    from tvm_edge.runtime.candidates import Candidate

    def latencies(_own: Candidate, rounds: int, _seconds: float, _hopeless: float) -> list[float]:
        time.sleep(sleep)
        return [sleep] * rounds

    Candidate.latencies = latencies
    at = parse_address(tracker)
    level = logging.WARNING
    given = listener.Listen("127.0.0.1", port, port + 1, at, _KEY, Path(folder), level)
    listener._server(given).thread.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(*arguments: object) -> Iterator[None]:
    started = subprocess.Popen([sys.executable, *map(str, arguments)], start_new_session=True)
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
    place = ("--host", "127.0.0.1", "--port", port, "--port-end", port + 1, "--silent")
    with ExitStack() as stack:
        stack.enter_context(_process("-m", "tvm.exec.rpc_tracker", *place))
        for _ in range(count):
            own = ("--serve", tracker, "--port", _free_port(), "--sleep", sleep)
            stack.enter_context(_process("-m", "benchmarks.boards", *own, "--folder", folder))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sleep", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port, options.sleep, options.folder)
        return
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
        spread = f"{median(own):.2f} [{min(own):.2f}–{max(own):.2f}]"
        bar = f">= {_BARS[count]}" if count in _BARS else ""
        print(f"| {count} | {spread} | **{growth:.2f}** | {bar} |")


if __name__ == "__main__":
    main()
