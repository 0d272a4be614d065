"""What is committed of measurements beside ``benchmarks/measured``: quotes, and groups on an H200.

``parallel_h200.json.gz`` is what :mod:`benchmarks.parallel_fusion` measured there, kept for
:mod:`benchmarks.parallel_policy`; Figures 8 and 10 of EMDL'21 are of the same groups.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.papers.measured import Measured, Results
from benchmarks.papers.quotes import quotes_of
from benchmarks.parallel_workloads import groups

__all__ = ["groups_on_h200", "with_committed"]

_FOLDER = Path(__file__).parents[1]
_KEPT = ("name", "peak_gflops", "unified_memory", "on_cpu")


def with_committed(results: Results) -> Results:
    """What was measured, and beside it what is committed elsewhere."""
    page = (_FOLDER / "RESULTS.md").read_text(encoding="utf-8")
    return results.beside([groups_on_h200()], quotes_of(page))


def groups_on_h200() -> Measured:
    """The groups of ``parallel_workloads.json`` as they were measured, a row for each commit."""
    with gzip.open(_FOLDER / "parallel_h200.json.gz", "rt") as file:
        data = json.load(file)
    numbers = {
        tuple(f"{network}/{node}" for network, node in members): number
        for number, members in enumerate(groups())
    }
    rows: list[dict[str, Any]] = [
        {
            "title": f"{numbers[tuple(row['members'])]}: {' + '.join(row['members'])}",
            "us": row["us"],
        }
        for row in data["rows"]
    ]
    device = {key: data["device"][key] for key in _KEPT}
    return Measured(
        job="groups-cuda",
        command="python -m benchmarks.parallel_fusion --part groups --target cuda --orders",
        machine={"cpu": "", "said": data["measured"], "devices": {"cuda": device}},
        commit=", ".join(dict.fromkeys(row["commit"] for row in data["rows"])),
        quick=False,
        cut_off=False,
        result=rows,
    )
