"""Sections of the results: one JSON file each, in ``results/sections/AREA``.

A section has a title, its commands, rows for the short page (``summary``), the bars of its issue
with their verdicts, and blocks: a paragraph, notes, a table or a picture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.paths import RESULTS

__all__ = [
    "MISSED",
    "NOT_MEASURED",
    "VERDICTS",
    "Area",
    "Row",
    "Section",
    "areas",
    "listed",
    "put_table",
]

MISSED = RESULTS / "missed.json"
"""Bars that are missed, worst first."""
NOT_MEASURED = RESULTS / "not_measured.json"
"""Bars without a figure, with the command that would give one."""
VERDICTS = ("met", "missed", "not measured")

_BLOCKS = ({"text"}, {"notes"}, {"columns", "rows"}, {"picture", "about"})


@dataclass(frozen=True)
class Row:
    """Row of the short page.

    Attributes
    ----------
    what, machine, date : str
    peer : str
        What ``ratio`` is over.
    ratio : float or None
        Speed-up: the peer's latency over that of tvm-edge. Without it ``measured`` has a figure.
    spread : sequence of float
        Least and largest ratio; empty if there is none.
    measured : str
    options : str
        What follows the section's first command.
    command : str
        Another command than the section's.
    chart, headline : str
        Words for the README's chart and for its table; empty to stay out of them.
    """

    what: str
    machine: str
    date: str
    peer: str = ""
    ratio: float | None = None
    spread: Sequence[float] = ()
    measured: str = ""
    options: str = ""
    command: str = ""
    chart: str = ""
    headline: str = ""

    @property
    def figure(self) -> str:
        """The ratio with its spread, or what was measured."""
        if self.ratio is None:
            return self.measured
        spread = f" [{self.spread[0]:.2f}–{self.spread[1]:.2f}]" if self.spread else ""
        return f"**{self.ratio:.2f}**{spread}"


@dataclass(frozen=True)
class Section:
    """Findings of one benchmark.

    Attributes
    ----------
    title : str
    commands : sequence of str
    summary : sequence of Row
    bars : mapping of str to str
        Verdict of each bar, one of :data:`VERDICTS`.
    blocks : sequence of mapping
        ``text``, ``notes``, ``columns`` with ``rows``, or ``picture`` with ``about``.
    """

    title: str
    commands: Sequence[str]
    summary: Sequence[Row] = ()
    bars: Mapping[str, str] = field(default_factory=dict)
    blocks: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for bar, verdict in self.bars.items():
            if verdict not in VERDICTS:
                raise ValueError(f"the verdict {verdict!r} of {bar!r} is none of {VERDICTS}")
        for block in self.blocks:
            if set(block) not in _BLOCKS:
                raise ValueError(f"a block has {sorted(block)}, not the keys of one of {_BLOCKS}")
            for row in block.get("rows", ()):
                if len(row) != len(block["columns"]):
                    raise ValueError(f"the row {row} has not one cell for each column")

    def command(self, row: Row) -> str:
        """Return the command line that measures a row."""
        return row.command or f"{self.commands[0]} {row.options}".rstrip()


@dataclass(frozen=True)
class Area:
    """Sections that share a page, ``results/NAME.md``."""

    name: str
    title: str
    sections: Sequence[Section]
    picture: str = ""
    about: str = ""


def areas(folder: Path = RESULTS) -> list[Area]:
    """Read the areas of ``areas.json`` with their sections, which stand by file name.

    Raises
    ------
    SystemExit
        A file is no section, or a folder of sections is no area.
    """
    known = listed(folder / "areas.json")
    for path in sorted((folder / "sections").iterdir()):
        if path.name not in known:
            raise SystemExit(f"{path} is no area; add it to {folder / 'areas.json'}")
    return [
        Area(name, sections=[_read(p) for p in _files(folder, name)], **area)
        for name, area in known.items()
    ]


def put_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Put a table in place of the one of these columns in a section; the rest of it stays.

    Parameters
    ----------
    name : str
        Of its file, ``AREA/SECTION``.
    columns : sequence of str
    rows : sequence of sequence of str
    """
    path = RESULTS / "sections" / f"{name}.json"
    section = listed(path)
    kept = [block for block in section["blocks"] if block.get("columns") != list(columns)]
    section["blocks"] = [*kept, {"columns": list(columns), "rows": [list(row) for row in rows]}]
    path.write_text(json.dumps(section, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def listed(path: Path) -> Any:
    """Read a JSON file of the results."""
    return json.loads(path.read_text(encoding="utf-8"))


def _files(folder: Path, area: str) -> list[Path]:
    return sorted((folder / "sections" / area).glob("*.json"))


def _read(path: Path) -> Section:
    try:
        found = listed(path)
        found["summary"] = [Row(**row) for row in found.get("summary", ())]
        return Section(**found)
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path} is no section ({error}); mend it there") from None
