"""APSys'20: Tables 2 and 3, Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from benchmarks.papers.exhibits import Exhibit, Table, not_measured, quoted
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Measured, Results

__all__ = ["COMPETITIVE", "PAPERS_LAYERS", "exhibits", "layers"]

COMPETITIVE = 1.15
"""Times of the best that count as near it (§4.1)."""
PAPERS_LAYERS = ("256×56² to 256, 3×3/1", "128×56² to 128, 3×3/1, 128 groups")
"""Layers of :mod:`benchmarks.gpu.workgroup` that are the paper's (Figure 5)."""

_PAPER = papers()["apsys20"]
_KINDS = {"convolutions": "Conv", "depthwise": "Dw-Conv"}
_NOT_HERE = "No Mali and no Adreno was reached."

Layer = Mapping[str, Any]
"""A layer as :mod:`benchmarks.gpu.workgroup` writes it."""


def exhibits(results: Results) -> list[Exhibit]:
    """The tables and figures, with what was measured for them."""
    return [
        _initialisation(results),
        _importance(results),
        _distribution(results),
        _latency(results),
    ]


def layers(measured: Measured) -> Mapping[str, Layer]:
    """Layers of a run by name."""
    found: Mapping[str, Layer] = measured.result["layers"]
    return found


def _initialisation(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 2"]
    rows = []
    sources = results.of("workgroup")
    for each in sources:
        found = layers(each).values()
        cells = (
            max(layer["choosing_ms"] for layer in found),
            sum(layer["trying_s"] for layer in found),
            sum(len(layer["us"]) for layer in found),
            len(found),
        )
        rows.append([each.label, *cells])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ("to choose by rule, ms a kernel at most", "to try sizes, s", "sizes", "layers")
        tables.append(Table(["tvm-edge on", *titles], rows))
    quotes = results.quotes("apsys20 Table 2")
    tables += [quoted(each) for each in quotes]
    notes = [
        f"{_NOT_HERE} TFLite initialises in the application; tvm-edge chooses when it compiles, "
        "and loads code that is built (`opencl_runtime`, second start). Compared can be "
        "what a search costs with what the rules do."
    ]
    return Exhibit(printed, tables, [*notes, *_missing([*rows, *quotes])], [*sources, *quotes])


def _importance(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Table 3"]
    rows: list[list[Any]] = [["paper", *row] for row in printed.cells]
    sources = results.of("workgroup")
    for each in sources:
        for kind, name in _KINDS.items():
            scores = [layer["importance"] for layer in layers(each).values() if _is(layer, kind)]
            if scores:
                rows.append(
                    [each.label, name, *(_mean(column) for column in zip(*scores, strict=True))]
                )
    notes = [
        f'{_NOT_HERE} A size obeys rule V here if it is within a factor of two ("approximately"); '
        "a rule that no size obeys has no score."
    ]
    quotes = results.quotes("apsys20 Table 3")
    for quote in quotes:
        rows += [[quote.label, *row] for row in quote.rows]
    table = Table(["on", *printed.columns], rows)
    notes += _missing([*sources, *quotes])
    return Exhibit(printed, [table], notes, [*sources, *quotes])


def _distribution(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 5"]
    rows = []
    sources = results.of("workgroup")
    for each in sources:
        for name, layer in layers(each).items():
            if name not in PAPERS_LAYERS:
                continue
            times = list(layer["us"].values())
            near = sum(us <= COMPETITIVE * layer["best_us"] for us in times) / len(times)
            cells = (f"{near:.0%}", layer["best_us"], median(times), max(times))
            rows.append([name, each.label, f"{len(times)} of {layer['possible']}", *cells])
    quotes = results.quotes("apsys20 Figure 5")
    for quote in quotes:
        for row in quote.records:
            if row["layer"] in PAPERS_LAYERS:
                times = (row[f"{which}, µs"] for which in ("best", "median", "worst"))
                sizes = f"{row['tried']} of {row['possible']}"
                rows.append([row["layer"], quote.label, sizes, f"{row['near']:.0%}", *times])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ("sizes tried", "within 15 %", "best, µs", "median, µs", "worst, µs")
        tables.append(Table(["layer", "tvm-edge on", *titles], rows))
    missing = sorted(set(PAPERS_LAYERS) - {row[0] for row in rows})
    notes = [not_measured(", ".join(missing), "workgroup-cuda")] if missing else []
    if quotes:
        notes.append(
            "All times of the H200's layers: `benchmarks/results/gpu/workgroup_h200_opencl.png`, "
            "`benchmarks/results/gpu/workgroup_h200_cuda.png`."
        )
    return Exhibit(printed, tables, [_NOT_HERE, *notes], [*sources, *quotes])


def _latency(results: Results) -> Exhibit:
    printed = _PAPER.exhibits["Figure 6"]
    rows = []
    sources = results.of("workgroup")
    for each in sources:
        for kind, name in _KINDS.items():
            saved = [
                layer["chosen_us"]["rules"] / layer["chosen_us"]["TVM's default"]
                for layer in layers(each).values()
                if _is(layer, kind)
            ]
            if saved:
                rows.append([name, each.label, *_saved(saved)])
    quotes = results.quotes("apsys20 Figure 5")
    for quote in quotes:
        for kind, name in _KINDS.items():
            saved = [
                row["rules / best"] / row["default / best"]
                for row in quote.records
                if ("groups" in row["layer"]) == (kind == "depthwise")
            ]
            rows.append([name, quote.label, *_saved(saved)])
    tables = [Table(printed.columns, printed.cells)]
    if rows:
        titles = ("less than TVM's default group, mean", "the most", "layers")
        tables.append(Table(["operator", "tvm-edge on", *titles], rows))
    notes = [
        f"{_NOT_HERE} The paper's figures are of networks, ours of single kernels without local "
        "memory, which is where tvm-edge uses the rules."
    ]
    return Exhibit(printed, tables, [*notes, *_missing(rows)], [*sources, *quotes])


def _saved(ratios: Sequence[float]) -> tuple[str, str, int]:
    """Savings of times over TVM's default: the mean, the most, and how many."""
    return (f"{1 - geometric_mean(ratios):.1%}", f"{1 - min(ratios):.1%}", len(ratios))


def _is(layer: Layer, kind: str) -> bool:
    return bool(layer["depthwise"]) == (kind == "depthwise")


def _mean(scores: Sequence[float | None]) -> float | None:
    there = [score for score in scores if score is not None]
    return sum(there) / len(there) if there else None


def _missing(found: Sequence[Any]) -> list[str]:
    return [] if found else [not_measured("Work-groups", "workgroup-cuda")]
