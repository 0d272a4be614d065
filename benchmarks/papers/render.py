"""The papers' tables as a page, ``results/papers.md``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers import apsys20, emdl21, icpp19, very_deep
from benchmarks.papers.exhibits import commands
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Results

__all__ = ["papers_part"]

_EXHIBITS = {
    "icpp19": icpp19.exhibits,
    "emdl21": emdl21.exhibits,
    "apsys20": apsys20.exhibits,
    "very_deep": very_deep.exhibits,
}


def papers_part(results: Results, pictures: Mapping[str, str]) -> str:
    """Return the page: the papers' tables, with what was measured."""
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
    return text.rstrip() + "\n"
