"""One artifact for every shape: beside artifacts for exactly one, ONNX Runtime and OpenVINO.

Cases and shapes are those of ``benchmarks/models/dynamic_cases.py``. A case is compiled once with
open dimensions, whose ranges name its typical shape, and once for exactly each shape; the
compilation for the typical shape is what the seconds and the bytes of the open one are compared
with. Float32, NumPy arrays in and out; peers get the same dynamic file.

Every runtime is in a process of its own. In a round four processes load, and at each shape they
take turns: the first run at that shape, the second, a warm-up, then runs for ``--seconds``, whose
median counts. Each round has new processes. Before its turns a process has run the typical shape;
that of the fixed artifacts loads the shape's, which is not counted. A figure is the median of the
rounds with their range in brackets; ``first run, ms more`` is the median of first less second.

``--random`` compares untimed runs at random shapes, which hypothesis draws.

Outputs of the first and of the last run are compared with ONNX Runtime's, to 1e-4 of an output's
largest value. Inputs are seeded, and others where rounding alone moves ONNX Runtime's own outputs,
with and without its graph optimisations, by more than 2e-5: ``noise`` in ``--json``. What a process
cannot do is reported as refused, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path
from shutil import copyfile
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json
from benchmarks.common.processes import run_child_within
from benchmarks.common.turns import TurnProcess
from benchmarks.models import dynamic_jobs
from benchmarks.models.dynamic_cases import CASES
from benchmarks.models.dynamic_jobs import ENVIRONMENT, OPEN, PEERS, RUNTIMES, artifact_name
from benchmarks.models.dynamic_tables import markdown, summarise, verdict

FOLDER = Path("~/.cache/tvm-edge-benchmarks/dynamic")
_QUICK_SHAPES = (0, 3, 5)
_QUICK_SECONDS = 0.1


def _measure(name: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Everything about one case."""
    runtimes = [runtime for runtime in RUNTIMES if runtime in options.runtimes]
    row: dict[str, Any] = {
        "case": name,
        "runtimes": runtimes,
        "numbers": options.shapes,
        "compiled": {},
        "shapes": {},
    }
    models = options.folder
    numbers = ",".join(map(str, sorted({0, *options.shapes})))
    for job in (
        ("write", name, options.environment, models),
        ("reference", name, numbers, models, scratch),
    ):
        done = _child(options, *job)
        if "failed" in done:
            return {**row, "failed": f"{job[0]}: {done['failed']}"}
    row["noise"] = done.get("noise", {})
    row["compiled"] = _compile(name, options, scratch)
    made = row["compiled"].get(OPEN, {})
    if "failed" in made:
        return {**row, "failed": f"compile: {made['failed']}"}
    if options.random and OPEN in runtimes:
        row["random"] = _child(options, "random", name, options.random, models, scratch)
    row["shapes"] = {str(number): {r: [] for r in runtimes} for number in options.shapes}
    for _ in range(options.rounds):
        _round(name, row, options, scratch)
    return row


def _compile(name: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Compile with open dimensions, for the typical shape, then for the others."""

    def compiled(shape: str) -> dict[str, Any]:
        kept = options.fixed / options.target if options.fixed and shape != OPEN else None
        if kept is not None:
            found = _kept(kept / artifact_name(name, shape), scratch)
            if found is not None:
                return found
        made = _child(options, "compile", name, shape, options.target, options.folder, scratch)
        if kept is not None and "failed" not in made:
            kept.mkdir(parents=True, exist_ok=True)
            path = kept / artifact_name(name, shape)
            copyfile(scratch / path.name, path)
            path.with_suffix(".json").write_text(json.dumps(made))
        return made

    found: dict[str, Any] = {}
    if OPEN in options.runtimes:
        for shape in (OPEN, "0"):  # alone, for their seconds
            found[shape] = compiled(shape)
            if "failed" in found[OPEN]:
                return found
    if "fixed" in options.runtimes:
        others = [shape for shape in map(str, options.shapes) if shape not in found]
        with ThreadPoolExecutor(options.jobs) as pool:
            found |= zip(others, pool.map(compiled, others), strict=True)
    return found


def _kept(path: Path, scratch: Path) -> dict[str, Any] | None:
    """Return what a kept artifact is known by; link its file for this run."""
    about = path.with_suffix(".json")
    if not about.exists() or not path.exists():
        return None
    (scratch / path.name).symlink_to(path)
    found: dict[str, Any] = json.loads(about.read_text())
    return found


def _child(options: argparse.Namespace, *job: object) -> dict[str, Any]:
    return run_child_within(options.limit_s, dynamic_jobs.__name__, *job)


def _round(name: str, row: dict[str, Any], options: argparse.Namespace, scratch: Path) -> None:
    """Let a process of each runtime take its turn at each shape."""
    processes: dict[str, TurnProcess] = {}

    def process_of(runtime: str) -> TurnProcess:
        known = processes.get(runtime)
        if known is None or not known.is_alive:  # it ended at an earlier shape
            words = (runtime, name, options.threads, options.seconds, options.folder, scratch)
            processes[runtime] = TurnProcess(
                dynamic_jobs.__name__,
                "serve",
                *words,
                scratch,
                seconds=options.limit_s,
                **ENVIRONMENT.get(runtime, {}),
            )
        return processes[runtime]

    try:
        for number in options.shapes:
            for runtime in row["runtimes"]:
                row["shapes"][str(number)][runtime].append(_turn(row, runtime, number, process_of))
    finally:
        for process in processes.values():
            process.end()


def _turn(row: dict[str, Any], runtime: str, number: int, process_of: Any) -> dict[str, Any]:
    made = row["compiled"].get(str(number), {})
    if runtime == "fixed" and "failed" in made:
        return {"failed": f"compile: {made['failed']}"}
    before = row["shapes"][str(number)][runtime]
    if before and "failed" in before[-1]:  # it would again
        return dict(before[-1])
    process: TurnProcess = process_of(runtime)
    if "failed" in process.loaded:
        return {"failed": f"load: {process.loaded['failed']}"}
    return process.ask(number)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("dynamic", __doc__)
    parser.shared(cases=Among(list(CASES), list(CASES)), shapes=None)
    parser.shared(runtimes=Among(None, RUNTIMES))
    parser.shared(target="llvm", rounds=5, seconds=1.0, threads=len(sched_getaffinity(0)))
    parser.shared(jobs=1, json=None)
    parser.add_argument(
        "--quick", action="store_true", help="one round of three shapes, and of a few runs"
    )
    parser.add_argument(
        "--random",
        type=int,
        default=0,
        metavar="N",
        help="also compare N random shapes in the ranges with ONNX Runtime, untimed",
    )
    parser.add_argument(
        "--limit-s", type=float, default=1800, metavar="S", help="time of a compilation, or a turn"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="keep the models here")
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="of the exporters")
    parser.add_argument(
        "--fixed",
        type=Path,
        metavar="FOLDER",
        help="keep the artifacts of fixed shapes here, and take those that are there, with the "
        "seconds that they took: while only open dimensions change",
    )
    parser.add_argument(
        "--from",
        dest="measured",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; print what --json wrote to these files, the last of a case",
    )
    options = parser.parse_args(arguments)
    count = min(len(case.lengths) for case in CASES.values())
    if options.quick:
        options.rounds, options.seconds = 1, _QUICK_SECONDS
        options.shapes = options.shapes or list(_QUICK_SHAPES)
    options.shapes = chosen_numbers(parser, "--shapes", options.shapes, count)
    if options.runtimes is None:
        # Peers run on the CPU: beside another device they say nothing.
        options.runtimes = [r for r in RUNTIMES if options.target == "llvm" or r not in PEERS]
    options.folder = options.folder.expanduser().resolve()
    place = options.environment or options.folder.with_name("exports-venv")
    options.environment = place.expanduser().resolve()
    options.fixed = options.fixed and options.fixed.expanduser().resolve()
    return options


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = _options(arguments)
    if options.measured:
        contents = [json.loads(path.read_text()) for path in options.measured]
        rows = {row["case"]: row for content in contents for row in content["rows"]}
        _print([rows[name] for name in CASES if name in rows], contents[-1]["target"])
        return
    found: list[dict[str, Any]] = []
    for name in options.cases:
        with tempfile.TemporaryDirectory(prefix="tvm-edge-dynamic-") as scratch:
            found.append(_measure(name, options, Path(scratch)))
        print(markdown(found[-1]), file=sys.stderr, flush=True)
        content = {
            "machine": describe_machine(),
            "target": options.target,
            "threads": options.threads,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "summary": summarise(found),
            "rows": found,
        }
        save_json(options.json, content)
    print(json.dumps(describe_machine(), indent=2))
    _print(found, options.target)


def _print(rows: Sequence[dict[str, Any]], target: str) -> None:
    for row in rows:
        print(markdown(row), end="\n\n")
    print(verdict(rows, target))
