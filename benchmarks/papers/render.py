"""The generated parts of ``RESULTS.md``: bars missed or not measured, and the papers' tables.

Each stands between two comments, ``<!-- NAME: generated -->`` and ``<!-- NAME: end -->``; what
people write around them stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.paths import RESULTS
from benchmarks.papers import apsys20, emdl21, icpp19, very_deep
from benchmarks.papers.exhibits import Table, commands
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Results

__all__ = ["MISSED", "NOT_MEASURED", "missed_part", "not_measured_part", "papers_part", "put"]

MISSED = RESULTS / "missed.json"
"""Bars that are missed, worst first; whoever writes a section of ``RESULTS.md`` keeps it."""
NOT_MEASURED = RESULTS / "not_measured.json"
"""Bars without a figure, with the command that would give one; kept in the same way."""

_EXHIBITS = {
    "icpp19": icpp19.exhibits,
    "emdl21": emdl21.exhibits,
    "apsys20": apsys20.exhibits,
    "very_deep": very_deep.exhibits,
}


def missed_part() -> str:
    """A table of :data:`MISSED`."""
    about = (
        "Worst first, of `benchmarks/results/missed.json`; all other bars that the sections name "
        "are met, or stand in the table below."
    )
    return _listed("Bars that are missed", about, MISSED, ("bar", "measured", "why", "section"))


def not_measured_part() -> str:
    """A table of :data:`NOT_MEASURED`."""
    about = (
        "Of `benchmarks/results/not_measured.json`: bars of the issues that have no figure, or not "
        "on all that they ask for, and what would measure them."
    )
    columns = ("bar", "command", "why", "section")
    return _listed("Bars that are not measured", about, NOT_MEASURED, columns)


def _listed(title: str, about: str, path: Path, columns: Sequence[str]) -> str:
    rows = json.loads(path.read_text(encoding="utf-8"))
    table = Table(columns, [[_cell(key, row[key]) for key in columns] for row in rows])
    return "\n".join([f"## {title}", "", about, "", *table.lines()])


def _cell(column: str, text: str) -> str:
    return f"`{text}`" if column == "command" else text


def papers_part(results: Results, pictures: Mapping[str, str]) -> str:
    """The papers' tables, with what was measured."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown of our own files
    )
    shown: list[dict[str, Any]] = [
        {
            "name": paper.name,
            "cite": paper.cite,
            "pages": paper.pages,
            "picture": pictures.get(key, ""),
            "exhibits": _EXHIBITS[key](results),
        }
        for key, paper in papers().items()
    ]
    template = environment.get_template("page.md.j2")
    text: str = template.render(papers=shown, failed=results.failed, commands=commands)
    return text.rstrip()


def put(text: str, name: str, part: str) -> str:
    """The text with a part between its markers.

    Raises
    ------
    SystemExit
        The markers are not there, each once and in order.
    """
    first, last = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(first)
    _, ended, after = rest.partition(last)
    if not (found and ended) or first in rest or last in before + after:
        raise SystemExit(
            f"the page has not the lines {first!r} and {last!r}, each once; put them back where "
            f"the part {name!r} belongs"
        )
    return f"{before}{first}\n{part}\n\n{last}{after}"
