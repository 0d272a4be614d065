"""Exhibits of a paper: its own rows, with ours beside or below them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.papers.figures import Printed
from benchmarks.papers.jobs import jobs
from benchmarks.papers.measurements import Measured
from benchmarks.papers.quotes import Quoted

__all__ = [
    "NOT_MEASURED",
    "Exhibit",
    "Source",
    "Table",
    "beside",
    "cell",
    "commands",
    "not_measured",
    "quoted",
    "ratio",
]

NOT_MEASURED = "not measured"

Source = Measured | Quoted
"""Source of figures of ours: what a job measured, or a section of the page."""


@dataclass(frozen=True)
class Table:
    """Table of Markdown; cells are text, or what :func:`cell` makes text of."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> list[str]:
        """The lines of the table."""
        return [
            _line(self.headers),
            "|" + "---|" * len(self.headers),
            *(_line([cell(value) for value in row]) for row in self.rows),
        ]


@dataclass(frozen=True)
class Exhibit:
    """An exhibit of a paper as the page shows it.

    Attributes
    ----------
    printed : Printed
    tables : sequence of Table
        The paper's rows first, if ours stand beside them or below.
    notes : sequence of str
        What cannot be compared, and what was not measured.
    sources : sequence of Source
    """

    printed: Printed
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    sources: Sequence[Source] = field(default=())


def beside(printed: Printed, ours: Mapping[str, Mapping[str, Any]]) -> Table:
    """The paper's table with columns of ours: by title, by what the paper has in its first."""
    rows = [
        [*cells, *(column.get(row[0], NOT_MEASURED) for column in ours.values())]
        for row, cells in zip(printed.rows, printed.cells, strict=True)
    ]
    return Table([*printed.columns, *ours], rows)


def commands(sources: Iterable[Source]) -> list[str]:
    """Each command once, with its machine."""
    return list(dict.fromkeys(f"`{source.command}`: {source.machine_line}" for source in sources))


def quoted(quote: Quoted) -> Table:
    """The table of a quote as it stands."""
    return Table(quote.columns, quote.rows)


def not_measured(what: str, job: str) -> str:
    """Note of a thing that is not measured, with the command of the job that would."""
    (found,) = (each for each in jobs(("llvm", "opencl", "cuda"), {}) if each.name == job)
    return f"{what}: {NOT_MEASURED}; `{found.command()}`."


def ratio(before: float | None, after: float | None) -> str:
    """Speed-up, or a dash where nothing can be compared."""
    return f"**{before / after:.2f}**" if before and after else "–"


def cell(value: Any) -> str:
    """Text as it is, numbers with so many digits as tell something."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
