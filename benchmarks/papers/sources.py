"""Figures of the page beside ``results/measured``: quotes, and groups on an H200.

``results/fusion/h200.json.gz`` is what :mod:`benchmarks.fusion.operators` measured there, kept for
:mod:`benchmarks.fusion.policy`; Figures 8 and 10 of EMDL'21 are of the same groups.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from benchmarks.common.paths import RESULTS
from benchmarks.fusion.workloads import groups
from benchmarks.papers.measurements import Measured, Results
from benchmarks.papers.quotes import read_quotes

__all__ = ["groups_on_h200", "with_committed"]

_KEPT = ("name", "peak_gflops", "unified_memory", "on_cpu")


def with_committed(results: Results) -> Results:
    """Results, and beside them what is committed elsewhere."""
    return results.beside([groups_on_h200()], read_quotes())


def groups_on_h200() -> Measured:
    """The groups of ``results/fusion/groups.json``, a row for each commit that measured them."""
    with gzip.open(RESULTS / "fusion" / "h200.json.gz", "rt") as file:
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
        command="python -m benchmarks run parallel_fusion --part groups --target cuda --orders",
        machine={"cpu": "", "said": data["measured"], "devices": {"cuda": device}},
        commit=", ".join(dict.fromkeys(row["commit"] for row in data["rows"])),
        quick=False,
        cut_off=False,
        result=rows,
    )
