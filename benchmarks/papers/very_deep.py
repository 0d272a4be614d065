"""Very deep CNNs on mobile devices: Tables 1 to 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.papers.exhibits import (
    NOT_MEASURED,
    Exhibit,
    Table,
    beside,
    not_measured,
    quoted,
)
from benchmarks.papers.figures import Printed, papers
from benchmarks.papers.measurements import Measured, Results

__all__ = ["STRATEGIES", "Run", "exhibits", "strategies"]

STRATEGIES = {
    "GPU": "as is",
    "Split": "split",
    "CPU Offload": "offload",
    "Pipeline": "pipeline",
}
"""The paper's columns and ours; its "CPU" is ``as is`` on ``llvm``."""

_PAPER = papers()["very_deep"]
_GB = 1e9

Run = Mapping[str, Any]
"""A strategy that :mod:`benchmarks.memory.networks` measured: ``peak``, ``seconds``, ``joules``."""


def exhibits(results: Results) -> list[Exhibit]:
    """The tables, with what was measured for them."""
    shared = "Devices that share the CPU's memory, where weights are mapped and not copied."
    ran = (
        "A TK1 was not reached, and how its CPU's code was built is not said. Memory is what the "
        "process holds at its peak, interpreter and TVM included, pages of mapped weights not."
    )
    energy = "Energy is read from NVIDIA's management library; the paper clamps a supply."
    return [
        _strategies(results, "Table 1", "seconds", "separate", ran),
        _strategies(results, "Table 2", "seconds", "unified", shared),
        _strategies(results, "Table 3", "joules", "separate", energy),
        _layers(results),
    ]


def strategies(
    measured: Measured, memory: str = "separate"
) -> Iterator[tuple[str, str, Mapping[str, Run]]]:
    """Runs of each of the paper's columns, by network and target; what failed is out.

    A GPU has its own copy of what it reads (``"separate"``) or shares it with the host
    (``"unified"``); a CPU alone stands with the former.
    """
    found: dict[tuple[str, str], dict[str, Run]] = {}
    for row in measured.result.get("strategies", ()):
        run = row.get("run", {})
        if "failed" not in run and "seconds" in run:
            if row["target"] == "llvm" or row["memory"] == memory:
                found.setdefault((row["network"], row["target"]), {})[row["strategy"]] = run
    for (network, target), runs in found.items():
        cpu = found.get((network, "llvm"), {}).get("as is")
        columns = {"CPU": cpu} if cpu else {}
        if target != "llvm":
            columns |= {name: runs[own] for name, own in STRATEGIES.items() if own in runs}
        elif memory != "separate" or any(
            other != "llvm" and name == network for name, other in found
        ):
            continue
        yield network, target, columns


def _strategies(results: Results, title: str, key: str, memory: str, note: str) -> Exhibit:
    printed = _PAPER.exhibits[title]
    names = {ours: theirs for theirs, ours in _PAPER.zoo.items()}
    rows, sources, on_gpu = [], [], False
    for each in results.of("strategies"):
        before = len(rows)
        for network, target, columns in strategies(each, memory):
            if any(isinstance(run[key], float) for run in columns.values()):
                device = each.machine.get("devices", {}).get(target, {})
                where = f"{target}, {device.get('name', each.machine['cpu'])}"
                cells = _cells(printed, columns, key)
                rows.append([names.get(network, network), where, *cells])
                on_gpu = on_gpu or target != "llvm"
        sources += [each] * (len(rows) > before)
    quotes = results.quotes(f"very_deep {title}")
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        tables.append(Table(["network", "tvm-edge on", *printed.columns[1:]], rows))
    tables += [quoted(each) for each in quotes]
    notes = [note]
    if not on_gpu:
        notes.append(not_measured("All columns of a GPU", "strategies-llvm"))
    return Exhibit(printed, tables, notes, [*sources, *quotes])


def _cells(printed: Printed, columns: Mapping[str, Run], key: str) -> list[Any]:
    found: list[Any] = []
    for title in printed.columns[1:]:
        if title.startswith("memory"):
            first = columns.get("GPU") or columns.get("CPU")
            found.append(first["peak"] / _GB if first else NOT_MEASURED)
        else:
            found.append(columns[title][key] if title in columns else NOT_MEASURED)
    return found


def _layers(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 4"]
    names = {ours: theirs for theirs, ours in _PAPER.zoo.items()}
    columns: dict[str, dict[str, Any]] = {}
    sources = results.of("layers")
    # Counted, not measured: the same on every machine but for its layouts.
    for each in sources[:1]:
        rows = {names[r["network"]]: r for r in each.result.get("layers", ())}
        columns = {
            "tvm-edge: weights and activations, GB": {
                name: row["total_gib"] * 2**30 / _GB for name, row in rows.items()
            },
            "FC share of weights": {name: f"{row['fc_share']:.0%}" for name, row in rows.items()},
        }
    notes = ["The zoo has no FCN-32s. Ours are the weights and the planned activations alone."]
    missing = [] if columns else [not_measured("Memory", "layers-llvm")]
    return Exhibit(printed, [beside(printed, columns)], [*notes, *missing], sources[:1])
