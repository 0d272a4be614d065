"""Write ``RESULTS.md``, ``results/AREA.md``, ``results/missed.md`` and the README's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.paths import PAGE, RESULTS, ROOT
from benchmarks.pages.chart import chart
from benchmarks.pages.sections import MISSED, NOT_MEASURED, Area, Section, areas, listed
from benchmarks.papers.exhibits import Table

__all__ = ["README", "pages", "put", "write_pages"]

README = ROOT / "README.md"
CHART = RESULTS / "readme.svg"

_WORST = 10  # missed bars on the short page
_COLUMNS = {
    "missed": ("bar", "measured", "why", "section"),
    "not measured": ("bar", "command", "why", "section"),
}


def pages() -> dict[Path, str]:
    """Return every generated page by its path, and the README with its figures."""
    found = areas()
    return {
        PAGE: _short_page(found),
        RESULTS / "missed.md": _bars_page(),
        CHART: chart([row for area in found for s in area.sections for row in s.summary]),
        README: put(README.read_text(encoding="utf-8"), "figures", _headlines(found)),
        **{RESULTS / f"{area.name}.md": _area_page(area) for area in found},
    }


def write_pages() -> list[Path]:
    """Write the pages that differ from what their sources make, and return their paths."""
    written = []
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def put(text: str, name: str, part: str) -> str:
    """Return the text with a part between its markers.

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


def _short_page(found: Sequence[Area]) -> str:
    missed = listed(MISSED)
    lines = [
        "# Measured figures",
        "",
        "A ratio is the peer's latency over that of tvm-edge: above 1 tvm-edge is ahead. Its",
        "spread is in brackets. Medians, float32, batch 1, two threads on CPUs, unless a row says",
        "otherwise. The areas' pages have all tables. [Add a result](../CONTRIBUTING.md#results).",
        "",
        "## Bars that are missed",
        "",
        f"The ten worst of {len(missed)}; [the others, and what has no figure](results/missed.md).",
        "",
        *_bar_table("missed", missed[:_WORST]),
    ]
    for area in found:
        lines += ["", f"## {area.title}", "", f"[All tables](results/{area.name}.md)."]
        lines += ["", *_summary(area).lines()]
        if area.picture:
            lines += ["", f"![{area.about}](results/{area.picture})"]
    lines += [
        "",
        "## The papers' tables",
        "",
        "[Each table of the four papers](results/papers.md), with ours beside it.",
    ]
    return "\n".join(lines) + "\n"


def _summary(area: Area) -> Table:
    columns = ("what", "peer", "ratio or figure", "machine", "date", "command")
    rows = [
        [row.what, row.peer or "–", row.figure, row.machine, row.date, f"`{each.command(row)}`"]
        for each in area.sections
        for row in each.summary
    ]
    return Table(columns, rows)


def _bars_page() -> str:
    lines = [
        "# Bars that are missed or not measured",
        "",
        "Bars that the sections name and that are not here are met.",
        "",
        "## Missed, worst first",
        "",
        *_bar_table("missed", listed(MISSED)),
        "",
        "## Not measured",
        "",
        *_bar_table("not measured", listed(NOT_MEASURED)),
    ]
    return "\n".join(lines) + "\n"


def _bar_table(verdict: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    columns = _COLUMNS[verdict]
    cells = [[f"`{r[c]}`" if c == "command" else r[c] for c in columns] for r in rows]
    return Table(columns, cells).lines()


def _area_page(area: Area) -> str:
    lines = [f"# {area.title}", ""]
    for section in area.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", ""]
    lines += [", ".join(f"`{command}`" for command in section.commands), ""]
    if section.bars:
        lines += [*Table(("bar", "verdict"), list(section.bars.items())).lines(), ""]
    for block in section.blocks:
        lines += [*_block(block), ""]
    return lines


def _block(block: Mapping[str, Any]) -> list[str]:
    if "text" in block:
        return [block["text"]]
    if "notes" in block:
        return [f"- {note}" for note in block["notes"]]
    if "picture" in block:
        return [f"![{block['about']}]({block['picture']})"]
    return Table(block["columns"], block["rows"]).lines()


def _headlines(found: Sequence[Area]) -> str:
    """Return the table of the README: rows with a headline, the furthest ahead first."""
    rows = [
        (area, row) for area in found for s in area.sections for row in s.summary if row.headline
    ]
    rows.sort(key=lambda each: -(each[1].ratio or 0))
    cells = [
        [
            row.headline,
            row.peer,
            row.figure,
            row.machine,
            f"[{area.name}](benchmarks/results/{area.name}.md)",
        ]
        for area, row in rows
    ]
    columns = ("what", "beside", "speed-up", "machine", "all figures")
    return "\n".join(Table(columns, cells).lines())
