"""Tables and figures that the four papers print: ``results/papers/figures.json``.

Each exhibit has the place where it stands, its columns and its rows. What a text does not say
(marks in pictures, page numbers) is left out; ``unclear`` names what does not go together in the
paper itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.common.paths import RESULTS

__all__ = ["Paper", "Printed", "papers"]

_PATH = RESULTS / "papers" / "figures.json"


@dataclass(frozen=True)
class Printed:
    """A table of a paper, or what it says of a figure.

    Attributes
    ----------
    title : str
        ``"Table 1"``.
    where : str
        Section, and page where the text shows it.
    about : str
        What the rows are, with the unit.
    columns : sequence of str
    rows : sequence of sequence
        Cells: text, a number, or ``None`` where the paper has none.
    unclear : str
        What in it contradicts the rest of the paper; empty for nothing.
    """

    title: str
    where: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    unclear: str = ""

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text, with all digits that the paper gives."""
        return [[_text(value) for value in row] for row in self.rows]


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes
    ----------
    name, cite : str
    pages : str
        What of it was read, and how.
    zoo : mapping of str to str
        Its networks by their names in :mod:`tvm_edge.zoo`.
    exhibits : mapping of str to Printed
        By title.
    """

    name: str
    cite: str
    pages: str
    zoo: Mapping[str, str]
    exhibits: Mapping[str, Printed]


@cache
def papers() -> Mapping[str, Paper]:
    """Papers by key: ``icpp19``, ``emdl21``, ``apsys20``, ``very_deep``."""
    found = json.loads(_PATH.read_text(encoding="utf-8"))
    return {
        key: Paper(
            **{
                **paper,
                "exhibits": {
                    title: Printed(title, **exhibit) for title, exhibit in paper["exhibits"].items()
                },
            }
        )
        for key, paper in found.items()
    }


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,}"
