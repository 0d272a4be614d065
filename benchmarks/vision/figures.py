"""Figures of vision operators as tables have them: cells, ratios, bars."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = [
    "Column",
    "Ratio",
    "Rounds",
    "Verdict",
    "cell",
    "figures_of",
    "machine_line",
    "note",
    "note_failures",
    "quotient_of",
    "spread_us",
    "table_line",
    "table_lines",
    "verdict_records",
    "wrong_line",
]

Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Workload's name → runtime → what each process found."""


@dataclass(frozen=True)
class Column:
    """A figure of one runtime in a table."""

    title: str
    runtime: str
    key: str


@dataclass(frozen=True)
class Ratio:
    """Speed-up of the second column over the first one."""

    title: str
    peer: Column
    own: Column


@dataclass(frozen=True)
class Verdict:
    """A bar, and what was found; ``None`` where a runtime failed or was wrong."""

    text: str
    bar: float
    value: float | None
    at_most: bool = False

    @property
    def met(self) -> bool:
        """True if the bar is met."""
        if self.value is None:
            return False
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        value = "no figure" if self.value is None else f"{self.value:.2f}"
        sign = "<=" if self.at_most else ">="
        return (
            f"- {self.text}: **{value}**; bar {sign} {self.bar}: "
            f"{'**met**' if self.met else '**missed**'}"
        )


def figures_of(results: Mapping[str, Sequence[dict[str, Any]]], column: Column) -> list[float]:
    """Figures of each process; none if one failed, was wrong, or ran beside its device."""
    found = results.get(column.runtime, [])
    if not all(r.get("right") and column.key in r and not r.get("beside") for r in found):
        return []
    return [r[column.key] for r in found]


def quotient_of(
    results: Mapping[str, Sequence[dict[str, Any]]], ratio: Ratio
) -> tuple[float, list[float]] | None:
    """Ratio of the medians, and round by round."""
    peer, own = figures_of(results, ratio.peer), figures_of(results, ratio.own)
    if not peer or not own:
        return None
    return median(peer) / median(own), [a / b for a, b in zip(peer, own, strict=True)]


def spread_us(microseconds: Sequence[float]) -> str:
    """Median and range."""
    middle, *ends = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in (median(microseconds), min(microseconds), max(microseconds))
    )
    return f"{middle} [{'–'.join(ends)}]"


def cell(results: Mapping[str, Sequence[dict[str, Any]]], column: Column) -> str:
    """A figure, or why there is none."""
    found = results.get(column.runtime, [])
    if not found:
        return "–"
    if any("failed" in r for r in found):
        return "**failed**"
    if not all(r["right"] for r in found):
        return f"**wrong** by {max(r['error'] for r in found):.3g}"
    if any(r.get("beside") for r in found):
        return "on the CPU"
    figure = figures_of(results, column)
    return spread_us(figure) if figure else "–"


def table_line(
    name: str,
    results: Mapping[str, Sequence[dict[str, Any]]],
    columns: Sequence[Column],
    ratios: Sequence[Ratio],
) -> str:
    """A workload's figures and ratios."""
    cells = [name, *(cell(results, column) for column in columns)]
    for ratio in ratios:
        found = quotient_of(results, ratio)
        cells.append(
            f"**{found[0]:.2f}** [{min(found[1]):.2f}–{max(found[1]):.2f}]" if found else "–"
        )
    return f"| {' | '.join(cells)} |"


def table_lines(
    title: str,
    names: Iterable[str],
    rounds: Rounds,
    columns: Sequence[Column],
    ratios: Sequence[Ratio] = (),
) -> list[str]:
    """A table with a line for each workload of those names."""
    titles = [title, *(f"{c.title}, µs" for c in columns), *(r.title for r in ratios)]
    return [
        f"| {' | '.join(titles)} |",
        "|" + "---|" * len(titles),
        *(table_line(name, rounds[name], columns, ratios) for name in names),
    ]


def machine_line(machine: Mapping[str, Any]) -> str:
    """Machine and versions of a table, in a line."""
    if "failed" in machine:
        return f"Machine not described: {machine['failed']}"
    parts = [machine["date"], f"{machine['cpu']}, {machine['cores']} cores"]
    parts += [machine["gpu"]] if "gpu" in machine else []
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    return "; ".join([*parts, f"Python {machine['python']}", *versions])


def note(text: str) -> None:
    """On the error stream, at once."""
    print(text, file=sys.stderr, flush=True)


def note_failures(name: str, results: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Note why runtimes have no figure of a workload."""
    for runtime, found in results.items():
        for reason in sorted({r["failed"] for r in found if "failed" in r}):
            note(f"{name} by {runtime}: {reason}")


def verdict_records(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """For a JSON file."""
    return [{"text": v.text, "bar": v.bar, "value": v.value, "met": v.met} for v in verdicts]


def wrong_line(rounds: Rounds) -> str:
    """List what was wrong or failed in any process."""
    wrong = [
        f"{name} by {runtime}"
        for name, results in rounds.items()
        for runtime, found in results.items()
        if not all(r.get("right") for r in found)
    ]
    return f"- wrong or failed: {', '.join(wrong) or 'none'}"
