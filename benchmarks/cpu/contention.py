"""Latency on the CPU beside other work: busy processes, frames, uneven cores, several callers.

Every runtime runs in a process of its own on the same CPUs with the same number of threads, and the
processes take turns. Of each process: median, 90th and 99th percentile of a run, and the CPU time
that the process took a run. A figure is the median of the processes. Outputs are compared with ONNX
Runtime's, to 1e-4 of an output's largest value. ``tvm-pool`` is tvm-edge's code under TVM's own
thread pool, ``onnxruntime-sleeping`` is ONNX Runtime with ``session.intra_op.allow_spinning`` off.

Parts:

- load: busy processes beside the model on its CPUs, 0 and as many as ``--busy`` says.
- frames: a frame every 33 ms, alone and beside one busy process; also the CPU time between frames,
  as a share of one core.
- uneven: half of the CPUs have a busy neighbour, at nice -5 where that is allowed.
- callers: eight threads that call one model, and four models at once; runs a second.
- endurance: runs while the CPUs of all threads change; every result has to be the first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import run_child
from benchmarks.cpu.contention_jobs import PEERS, RUNTIMES
from benchmarks.cpu.converted_peers import CONVERTED
from tvm_edge.cli.busy import busy_processes

_JOBS = "benchmarks.cpu.contention_jobs"
_NETWORKS = ("mobilenet_v2", "squeezenet1_0", "resnet50_v1", "googlenet")
_PARTS = ("load", "frames", "uneven", "callers", "endurance")
_FRAME_MS = 1000 / 30
_NICE = -5
_CALLERS = {"8 threads, one model": (8, 1), "4 models at once": (4, 4)}
Rows = list[dict[str, Any]]


@contextmanager
def _busy_neighbours(cpus: Sequence[int]) -> Iterator[None]:
    """A process on each of these CPUs that goes before others, where that is allowed."""
    with ExitStack() as stack:
        for cpu in cpus:
            (process,) = stack.enter_context(busy_processes(1, [cpu]))
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, process, _NICE)
        yield


def _measure(
    row: Mapping[str, Any], job: Sequence[object], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Let the runtimes take turns at a job; a row with what each of them took."""
    found: dict[str, Rows] = {runtime: [] for runtime in options.runtimes}
    for _ in range(options.rounds):
        for runtime, results in found.items():
            name, *arguments = job
            done = run_child(_JOBS, name, runtime, *arguments, folder, **RUNTIMES[runtime])
            results.append(done)
    result = {**row, "runtimes": {runtime: _summary(done) for runtime, done in found.items()}}
    print(_line(result), flush=True)
    return result


def _summary(results: Rows) -> dict[str, Any]:
    failed = next((each["failed"] for each in results if "failed" in each), None)
    if failed:
        return {"failed": failed}
    keys = [key for key in results[0] if isinstance(results[0][key], float)]
    return {key: median(each[key] for each in results) for key in keys} | {
        "right": all(each["right"] for each in results),
        "rounds": results,
    }


def _line(row: Mapping[str, Any]) -> str:
    """A row of a table in Markdown: median / 99th percentile (CPU time), or runs a second."""
    cells = [str(row["part"]), str(row["network"]), str(row["busy"]), str(row["threads"])]
    for result in row["runtimes"].values():
        if "failed" in result:
            cells.append(f"**{result['failed'][:60]}**")
        elif "runs_per_second" in result:
            cells.append(f"{result['runs_per_second']:.1f} a second")
        else:
            times = f"{result['median_ms']:.2f} / {result['p99_ms']:.2f}"
            cpu = f"{result['cpu_ms']:.1f}"
            if row["part"] == "frames":
                cpu += f", {result['between_share']:.1%}"
            wrong = "" if result["right"] else " **wrong**"
            cells.append(f"{times} ({cpu}){wrong}")
    return f"| {' | '.join(cells)} |"


def _best_peer(row: Mapping[str, Any], key: str) -> float | None:
    """The best figure of other projects' runtimes."""
    known = [
        row["runtimes"][peer][key]
        for peer in PEERS
        if key in row["runtimes"].get(peer, {}) and row["runtimes"][peer]["right"]
    ]
    if not known:
        return None
    return max(known) if key == "runs_per_second" else min(known)


def _against_tvm_pool(rows: Rows) -> list[str]:
    """Medians under our pool over those under TVM's, by part and number of threads."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        ours, before = (row["runtimes"].get(r, {}) for r in ("tvm-edge", "tvm-pool"))
        if "median_ms" in ours and "median_ms" in before:
            key = (row["part"], row["busy"], row["threads"])
            groups.setdefault(key, []).append(ours["median_ms"] / before["median_ms"])
    return [
        f"{part}, {busy} busy, {threads} threads: {geometric_mean(ratios):.3f} of the median under "
        f"TVM's pool in geometric mean, worst {max(ratios):.3f}"
        for (part, busy, threads), ratios in groups.items()
    ]


def _ratios(rows: Rows) -> list[str]:
    """Ours over the best peer's, by part and number of busy processes."""
    groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        own = row["runtimes"].get("tvm-edge", {})
        for key in ("median_ms", "p99_ms", "runs_per_second"):
            peer = _best_peer(row, key)
            if key in own and peer:
                group = groups.setdefault((row["part"], row["busy"], row["threads"]), {})
                group.setdefault(key, []).append(own[key] / peer)
    return [
        f"{part}, {busy} busy, {threads} threads: {key} {geometric_mean(ratios):.2f} of the best "
        f"peer's in geometric mean, worst {min(ratios) if 'runs' in key else max(ratios):.2f}"
        for (part, busy, threads), by_key in groups.items()
        for key, ratios in by_key.items()
    ]


def _run_parts(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each measurement."""
    cpus = sorted(os.sched_getaffinity(0))
    seconds, threads = options.seconds, options.threads
    for network in options.networks:
        base = {"network": network, "threads": threads, "busy": 0}
        if "load" in options.part:
            for busy in [0, *options.busy]:
                with busy_processes(busy, cpus):
                    row = {**base, "part": "load", "busy": busy}
                    yield _measure(row, ("time", network, threads, seconds, 0), options, folder)
        if "frames" in options.part:
            for busy in (0, 1):
                with busy_processes(busy, cpus):
                    row = {**base, "part": "frames", "busy": busy}
                    job = ("time", network, threads, seconds, _FRAME_MS)
                    yield _measure(row, job, options, folder)
        if "uneven" in options.part:
            half = cpus[: len(cpus) // 2]
            with _busy_neighbours(half):
                row = {**base, "part": "uneven", "busy": len(half)}
                yield _measure(row, ("time", network, threads, seconds, 0), options, folder)
        if "callers" in options.part:
            for about, (callers, models) in _CALLERS.items():
                row = {**base, "part": about}
                job = ("callers", network, threads, seconds, callers, models)
                yield _measure(row, job, options, folder)
        if "endurance" in options.part:
            job = ("endurance", network, threads, options.runs)
            found = run_child(_JOBS, *job, folder, **RUNTIMES["tvm-edge"])
            print("endurance", network, found, flush=True)
            yield {**base, "part": "endurance", "runtimes": {}, "endurance": found}


def main(arguments: Sequence[str]) -> None:
    """Measure, print tables, and compare with the peers."""
    parser = Parser("contention", __doc__)
    parser.shared(
        part=Among(_PARTS, _PARTS),
        networks=_NETWORKS,
        runtimes=Among(tuple(RUNTIMES), tuple(RUNTIMES)),
        rounds=3,
        seconds=4.0,
        threads=len(os.sched_getaffinity(0)),
        json=None,
    )
    parser.add_argument(
        "--busy", type=int, nargs="*", metavar="N", help="busy processes (default: 1, 2, all CPUs)"
    )
    parser.add_argument(
        "--cpus", type=int, nargs="*", metavar="CPU", help="CPUs that everything runs on"
    )
    parser.add_argument("--runs", type=int, default=10_000, metavar="N", help="runs of endurance")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="keep models there")
    options = parser.parse_args(arguments)
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    if options.busy is None:
        options.busy = sorted({1, 2, len(os.sched_getaffinity(0))})
    machine = describe_machine()
    rows: Rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        for network in options.networks:
            for job in ("save", "compile"):
                if "failed" in (found := run_child(_JOBS, job, network, folder)):
                    raise SystemExit(f"{job} of {network}: {found['failed']}")
            for peer in CONVERTED:
                if peer in options.runtimes:
                    run_child(_JOBS, "convert", peer, network, folder)
        print(f"| part | network | busy | threads | {' | '.join(options.runtimes)} |")
        print("|" + "---|" * (4 + len(options.runtimes)))
        for row in _run_parts(options, folder):
            rows.append(row)
            save_json(options.json, {"machine": machine, "rows": rows})
    print(
        "\nmedian / p99 in ms (CPU time of a run in ms, share of a core between frames)\n",
        *_ratios(rows),
        sep="\n",
    )
    print(*_against_tvm_pool(rows), sep="\n")
    print("\n", machine, sep="")
