"""Tables of other sections that the papers' exhibits want.

``results/papers/quotes.json`` has them. A table is there where a section's own command has measured
it and no file of ``results/measured`` has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.paths import RESULTS

__all__ = ["Quoted", "read_quotes"]

_PATH = RESULTS / "papers" / "quotes.json"


@dataclass(frozen=True)
class Quoted:
    """A table of a section.

    Attributes
    ----------
    exhibit : str
        Paper and exhibit that it is shown under: ``"icpp19 Table 1"``.
    section : str
    command : str
        Of the section.
    label : str
        For the head of a column: device and machine.
    machine : str
        With date and commit where they are known.
    columns : sequence of str
    rows : sequence of sequence
        Cells: numbers, text as the section has it, or ``None``.
    device : mapping
        ``peak_gflops``, of the data sheet.
    """

    exhibit: str
    section: str
    command: str
    label: str
    machine: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    device: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machine_line(self) -> str:
        """Section of the table, and the machine."""
        return f'section "{self.section}": {self.machine}'

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows with their cells by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def milliseconds(self, name: str) -> dict[str, float]:
        """Times of the column of a name, by what is in the first; none where there is no such."""
        for unit, scale in (("ms", 1.0), ("µs", 1e-3)):
            if (title := f"{name}, {unit}") in self.columns:
                return {row[self.columns[0]]: row[title] * scale for row in self.records}
        return {}


def read_quotes(path: Path = _PATH) -> list[Quoted]:
    """Read all of them.

    Raises
    ------
    SystemExit
        The file is no list of such tables.
    """
    try:
        return [Quoted(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path} is no list of quotes ({error}); mend it there") from None
