"""The generated parts of ``RESULTS.md``: the bars that are missed, and the papers' tables.

Each stands between two comments, ``<!-- NAME: generated -->`` and ``<!-- NAME: end -->``; what
people write around them stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers import apsys20, emdl21, icpp19, very_deep
from benchmarks.papers.exhibits import Table, commands
from benchmarks.papers.figures import papers
from benchmarks.papers.measured import Results

__all__ = ["missed_part", "papers_part", "put"]

_MISSED = Path(__file__).parents[1] / "missed.json"
"""Bars that are missed, worst first; whoever writes a section of ``RESULTS.md`` keeps it."""

_EXHIBITS = {
    "icpp19": icpp19.exhibits,
    "emdl21": emdl21.exhibits,
    "apsys20": apsys20.exhibits,
    "very_deep": very_deep.exhibits,
}


def missed_part() -> str:
    """A table of :data:`_MISSED`."""
    rows = json.loads(_MISSED.read_text(encoding="utf-8"))
    table = Table(
        ["bar", "measured", "why", "section"],
        [[row[key] for key in ("bar", "measured", "why", "section")] for row in rows],
    )
    lines = [
        "## Bars that are missed",
        "",
        "Worst first, of `benchmarks/missed.json`; all other bars that the sections name are met.",
        "",
        *table.lines(),
    ]
    return "\n".join(lines)


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
