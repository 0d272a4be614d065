"""Figures that other sections of ``RESULTS.md`` have, where the papers' exhibits want them.

``quotes.json`` says which table of which section stands in for which exhibit; the figures are read
from the page itself, so that they cannot differ from it. A measurement is quoted where the section
has it and no file of ``benchmarks/measured`` does: it was made by the section's own command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Quoted", "number", "quotes_of", "sections"]

_PATH = Path(__file__).with_name("quotes.json")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_COMMAND = re.compile(r"`([^`]+)`")
_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")
# What is generated from this is no source of it.
_GENERATED = re.compile(r"^<!-- (\w+): generated -->$.*?^<!-- \1: end -->$", re.MULTILINE | re.S)


@dataclass(frozen=True)
class Quoted:
    """A table of a section, or a sentence.

    Attributes
    ----------
    exhibit : str
        Paper and exhibit that it is shown under: ``"icpp19 Table 1"``.
    section : str
    command : str
        Of the section's heading.
    label : str
        For the head of a column: device and machine.
    machine : str
        As the section names it, with date and commit where it does.
    titles : mapping of str to str
        The table's columns, by short names.
    rows : sequence of mapping
        The cells as they stand, by those names.
    says : str
        The sentence; empty for a table.
    device : mapping
        ``peak_gflops``, of the data sheet.
    """

    exhibit: str
    section: str
    command: str
    label: str
    machine: str
    titles: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[Mapping[str, str]] = ()
    says: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machine_line(self) -> str:
        """Where it stands, and what it was measured on."""
        return f'section "{self.section}" above: {self.machine}'

    def numbers(self, key: str, value: str) -> dict[str, float]:
        """A column by another; cells without a number are left out."""
        found = ((row[key], number(row[value])) for row in self.rows)
        return {name: figure for name, figure in found if figure is not None}


def number(text: str) -> float | None:
    """The first number of a cell: of ``**1.07** [1.03-1.10]`` the median."""
    found = _NUMBER.search(text)
    return float(found[0].replace(",", "")) if found else None


def sections(page: str) -> dict[str, tuple[str, str]]:
    """By name, the command and the text of each section that people write."""
    parts = _HEADING.split(_GENERATED.sub("", page))[1:]
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        name, _, rest = heading.partition(":")
        command = _COMMAND.search(rest)
        found[name] = (command[1] if command else "", text)
    return found


def quotes_of(page: str, path: Path = _PATH) -> list[Quoted]:
    """All quotes, as the page has them.

    Raises
    ------
    SystemExit
        The page does not have one: it was measured anew, or its table has other columns.
    """
    there = sections(page)
    return [_quoted(entry, there, path) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _quoted(entry: Mapping[str, Any], there: Mapping[str, tuple[str, str]], path: Path) -> Quoted:
    def fail(what: str) -> SystemExit:
        return SystemExit(
            f"RESULTS.md has not {what}, which {path.name} quotes for {entry['exhibit']}; "
            f"write there what the page has now, or take the quote out"
        )

    if entry["section"] not in there:
        raise fail(f"the section {entry['section']!r}")
    command, text = there[entry["section"]]
    words, behind = " ".join(text.split()), entry.get("behind", "")
    for said in (*entry["machine"], entry.get("says", ""), behind):
        if said not in words or (said == behind and said not in text):
            raise fail(f"the words {said!r} in the section {entry['section']!r}")
    titles = entry.get("columns", {})
    rows: list[dict[str, str]] = []
    if titles:
        table = next((t for t in _tables(text, behind) if set(titles.values()) <= set(t[0])), None)
        if table is None:
            raise fail(f"a table with {', '.join(titles.values())} behind {behind!r}")
        rows = [{key: row[title] for key, title in titles.items()} for row in table]
        if "only" in entry:
            first = next(iter(titles))
            rows = [row for row in rows if row[first] in entry["only"]]
            if lacking := set(entry["only"]) - {row[first] for row in rows}:
                raise fail(f"the rows {', '.join(sorted(lacking))}")
    return Quoted(
        entry["exhibit"],
        entry["section"],
        command,
        entry["label"],
        ", ".join(entry["machine"]).replace("**", ""),
        titles,
        rows,
        entry.get("says", ""),
        entry.get("device", {}),
    )


def _tables(text: str, behind: str) -> Iterator[list[dict[str, str]]]:
    """The tables behind some words, a line's cells by the titles of their columns."""
    lines = text[text.index(behind) :].splitlines()
    table: list[list[str]] = []
    for line in (*lines, ""):
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif table:
            titles, _, *rows = table
            yield [dict(zip(titles, row, strict=True)) for row in rows]
            table = []
