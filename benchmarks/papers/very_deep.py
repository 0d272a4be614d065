"""Very deep CNNs on mobile devices: Tables 1 to 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.papers.exhibits import NOT_MEASURED, Exhibit, Table, beside
from benchmarks.papers.figures import Printed, papers
from benchmarks.papers.measured import Measured, Results

__all__ = ["STRATEGIES", "Run", "exhibits", "strategies"]

STRATEGIES = {
    "GPU": "as is",
    "Split": "FC split ×4",
    "CPU Offload": "FC on the CPU",
    "Pipeline": "FC on the CPU, pipelined",
}
"""The paper's columns by the planner's plans; its column "CPU" is ``as is`` on ``llvm``."""

_PAPER = papers()["very_deep"]
_GB = 1e9

Run = Mapping[str, Any]
"""What :mod:`benchmarks.memory` measured of a plan: ``peak``, ``seconds``, ``joules``."""


def exhibits(results: Results) -> list[Exhibit]:
    """The tables, with what was measured for them."""
    sources = results.of("strategies")
    shared = "Devices that share the CPU's memory, where weights are mapped and not copied."
    ran = (
        "A TK1 was not reached, and how its CPU's code was built is not said. Memory is what the "
        "process holds at its peak, interpreter and TVM included, pages of mapped weights not."
    )
    return [
        _strategies("Table 1", sources, "seconds", lambda *_: True, [ran]),
        _strategies("Table 2", sources, "seconds", _shares_memory, [shared]),
        _strategies(
            "Table 3",
            sources,
            "joules",
            lambda *_: True,
            ["Energy is read from NVIDIA's management library; the paper clamps a supply."],
        ),
        _layers(results),
    ]


def strategies(measured: Measured) -> Iterator[tuple[str, str, Mapping[str, Run]]]:
    """By network and target the runs of each of the paper's columns; a plan that failed is out."""
    found: dict[tuple[str, str], dict[str, Run]] = {}
    for row in measured.result.get("strategies", ()):
        run = row.get("run", {})
        if "failed" not in run and "seconds" in run:
            found.setdefault((row["network"], row["target"]), {})[row["plan"]] = run
    for (network, target), plans in found.items():
        cpu = found.get((network, "llvm"), {}).get("as is")
        columns = {"CPU": cpu} if cpu else {}
        if target != "llvm":
            columns |= {name: plans[plan] for name, plan in STRATEGIES.items() if plan in plans}
        elif any(other != "llvm" and name == network for name, other in found):
            continue
        yield network, target, columns


def _shares_memory(target: str, device: Mapping[str, Any]) -> bool:
    return target != "llvm" and bool(device.get("unified_memory"))


def _strategies(
    title: str,
    sources: Sequence[Measured],
    key: str,
    wanted: Callable[[str, Mapping[str, Any]], bool],
    notes: Sequence[str],
) -> Exhibit:
    printed = _PAPER.exhibits[title]
    names = {ours: theirs for theirs, ours in _PAPER.zoo.items()}
    rows = []
    for each in sources:
        for network, target, columns in strategies(each):
            device = each.machine.get("devices", {}).get(target, {})
            if wanted(target, device):
                where = f"{target}, {device.get('name', each.machine['cpu'])}"
                cells = _cells(printed, columns, key)
                rows.append([names.get(network, network), where, *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        tables.append(Table(["network", "tvm-edge on", *printed.columns[1:]], rows))
    missing = [] if rows else ["Not measured."]
    return Exhibit(printed, tables, [*notes, *missing], sources)


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
    missing = [] if columns else ["Not measured."]
    return Exhibit(printed, [beside(printed, columns)], [*notes, *missing], sources[:1])
