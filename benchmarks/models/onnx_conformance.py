"""ONNX's own tests of operators: passed, refused, wrong, crashed (``make conformance``).

Runs every node case of the installed onnx package through ``tvm_edge.onnx_backend``, each from an
artifact that was exported and loaded, and prints a table: operator × passed, refused, wrong,
crashed. Batches run in processes of their own, so that a crash or a hang costs the case at fault.

``expected_failures.txt`` beside the tests lists the cases that do not pass, each with the error
that refuses it and the reason: a case that fails and is not in it, or is and passes, is an error
(``--check``). ``--update`` writes the list anew, ``--json`` a line per case.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx

from benchmarks.common.options import Parser
from tests.onnx_backend import cases

FAILURES = Path(cases.__file__).with_name("expected_failures.txt")
BATCH = 250
# Far more than it takes: whoever hangs costs this long.
START_SECONDS, CASE_SECONDS = 90, 60
COLUMNS = ("pass", "UnsupportedOperatorError", "refused otherwise", "wrong", "crashed")
KINDS = ("static", "specialised", "dynamic")


def run_batch(names: list[str], device: str) -> list[dict[str, Any]]:
    """The outcome of each case; one that ends the process, or hangs, counts as crashed."""
    results: list[dict[str, Any]] = []
    while len(results) < len(names):
        left = names[len(results) :]
        lines, status = _worker(left, device)
        results += lines
        if len(lines) < len(left):
            crashed = {"name": left[len(lines)], "outcome": "crashed", "detail": status}
            results.append({**crashed, "kind": "", "seconds": 0.0})
    return results


def _worker(names: list[str], device: str) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process prints about cases, and how it ended."""
    run = (sys.executable, "-m", "benchmarks", "run", "onnx_conformance")
    process = subprocess.Popen(
        [*run, "--device", device, "--worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n".join(names))
    process.stdin.close()
    lines: list[dict[str, Any]] = []
    hung = threading.Event()

    def end() -> None:
        hung.set()
        process.kill()

    timer = threading.Timer(START_SECONDS, end)
    timer.start()
    for line in process.stdout:
        if line.startswith("{"):
            timer.cancel()
            timer = threading.Timer(CASE_SECONDS, end)
            timer.start()
            lines.append(json.loads(line))
    status = process.wait()
    timer.cancel()
    return lines, "the process hung" if hung.is_set() else f"the process ended with {status}"


def work(names: Iterable[str], device: str) -> None:
    """Run cases in this process, a line of JSON each."""
    for name in names:
        start = perf_counter()
        result = cases.outcome(cases.load_cases()[name], device)
        print(json.dumps({**vars(result), "seconds": round(perf_counter() - start, 3)}), flush=True)


def table(results: list[dict[str, Any]]) -> str:
    """Operator × outcome."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        operator = cases.operator_of(cases.load_cases()[result["name"]])
        column = result["outcome"] if result["outcome"] in COLUMNS else "refused otherwise"
        counts.setdefault(operator, Counter())[column] += 1
    rows = [(name, *(counts[name][c] for c in COLUMNS)) for name in sorted(counts)]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, len(COLUMNS) + 1))))
    width = max(len(row[0]) for row in rows)
    head = ("passed", "unsupported", "refused", "wrong", "crashed")
    lines = [f"{'operator':{width}}" + "".join(f"{h:>12}" for h in head)]
    lines += [f"{row[0]:{width}}" + "".join(f"{n or '.':>12}" for n in row[1:]) for row in rows]
    return "\n".join(lines)


def count_line(results: list[dict[str, Any]], device: str, seconds: float) -> str:
    """Everything in one line."""
    import onnx

    outcomes = Counter(result["outcome"] for result in results)
    kinds = Counter(result["kind"] for result in results)
    passed = outcomes.pop(cases.PASS, 0)
    wrong, crashed = outcomes.pop("wrong", 0), outcomes.pop("crashed", 0)
    how = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    return (
        f"onnx {onnx.__version__} on {device}: {passed} of {len(results)} pass ({how}); "
        f"{outcomes.total()} refused, {wrong} wrong, {crashed} crashed; {seconds:.0f} s"
    )


def expected_failures() -> dict[str, str]:
    """Name → error and reason, of cases that are known not to pass on the CPU."""
    lines = FAILURES.read_text().splitlines() if FAILURES.exists() else []
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: reason for name, reason in pairs}


def surprises(results: list[dict[str, Any]]) -> list[str]:
    """Cases that do other than the list says, a line each."""
    expected, found = expected_failures(), []
    for result in results:
        name, outcome = result["name"], result["outcome"]
        said = expected.get(name, cases.PASS).split(":")[0]
        if outcome != said:
            found.append(f"{name}: {outcome}, and the list says {said}. {result['detail'][:200]}")
    return found


def write_failures(results: list[dict[str, Any]]) -> None:
    """The list anew; reasons that stand in it already stay."""
    known = expected_failures()
    lines = [
        f"# Cases of onnx {onnx.__version__} that do not pass on llvm: "
        "name, error, class and reason.",
        "# `make conformance` fails where a case does other than this says; `--update` adds and "
        "removes cases.",
    ]
    for result in sorted(results, key=lambda result: result["name"]):
        name, outcome = result["name"], result["outcome"]
        if outcome == cases.PASS:
            continue
        said = known.get(name, "")
        same = said.split(":")[0] == outcome
        lines.append(f"{name}  {said}" if same else f"{name}  {outcome}: {result['detail'][:120]}")
    FAILURES.write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Run the cases and print the table; exit status 1 where the list says otherwise."""
    parser = Parser("onnx_conformance", __doc__)
    parser.add_argument("--device", default="CPU", help="CPU, CUDA or OPENCL")
    parser.add_argument("--match", default="", help="only cases whose name has this pattern")
    parser.shared(jobs=1)
    parser.add_argument("--sample", action="store_true", help="only the cases of make test")
    parser.add_argument("--json", type=Path, help="write the outcome of each case to this file")
    parser.add_argument("--check", action="store_true", help="fail where the list says otherwise")
    parser.add_argument("--update", action="store_true", help="write the list of failures anew")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(sys.stdin.read().split(), options.device)
        return
    start = perf_counter()
    chosen = cases.sample() if options.sample else sorted(cases.load_cases())
    names = [name for name in chosen if re.search(options.match, name)]
    batches = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for done in pool.map(lambda batch: run_batch(batch, options.device), batches):
            results += done
            if options.json:
                options.json.write_text("".join(json.dumps(result) + "\n" for result in results))
    print(table(results))
    print(count_line(results, options.device, perf_counter() - start))
    if options.update:
        write_failures(results)
    found = surprises(results) if options.check else []
    print("\n".join(found))
    sys.exit(1 if found else 0)
