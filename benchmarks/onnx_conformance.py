"""How much of ONNX's operator tests passes: ``python -m benchmarks.onnx_conformance``.

Runs every node case of the installed onnx package through ``tvm_edge.onnx_backend`` and prints a
table: operator × passed, refused, wrong, crashed. Batches run in processes of their own, so
that a crash costs the case at fault. ``--json`` writes one line per case.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.onnx_backend import cases

BATCH = 100
# Far more than it takes: whoever hangs costs this long.
START_SECONDS, CASE_SECONDS = 60, 5
COLUMNS = ("pass", "UnsupportedOperatorError", "refused otherwise", "wrong", "crashed")


def run_batch(names: list[str], device: str) -> list[dict[str, Any]]:
    """The outcome of each case; one that ends the process counts as crashed."""
    results: list[dict[str, Any]] = []
    while len(results) < len(names):
        left = names[len(results) :]
        command = [sys.executable, "-m", __spec__.name, "--device", device, "--worker", *left]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=START_SECONDS + CASE_SECONDS * len(left),
            )
            printed, status = done.stdout, f"the process ended with status {done.returncode}"
        except subprocess.TimeoutExpired as err:
            printed = (err.stdout or b"").decode()
            status = "the process hung"
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        results += lines
        if len(lines) < len(left):
            crashed = {"name": left[len(lines)], "outcome": "crashed", "detail": status}
            results.append({**crashed, "seconds": 0.0})
    return results


def work(names: list[str], device: str) -> None:
    """Run cases in this process, a line of JSON each."""
    for name in names:
        start = perf_counter()
        outcome, detail = cases.outcome(cases.load_cases()[name], device)
        result = {"name": name, "outcome": outcome, "detail": detail}
        print(json.dumps({**result, "seconds": round(perf_counter() - start, 3)}), flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="CPU", help="CPU, CUDA or OPENCL")
    parser.add_argument("--match", default="", help="only cases whose name has this pattern")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--sample", action="store_true", help="only the cases of make test")
    parser.add_argument("--json", type=Path, help="write the outcome of each case to this file")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.device)
        return
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


if __name__ == "__main__":
    main()
