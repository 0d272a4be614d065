"""A page of figures, notes and tables in the style of a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tvm_edge.files import whole_file, writing
from tvm_edge.report.page import render
from tvm_edge.report.page.tables import Table

__all__ = ["write_table_page"]


def write_table_page(
    path: str | os.PathLike[str],
    title: str,
    subtitle: str,
    figures: Sequence[tuple[str, str, str]],
    notes: Sequence[str],
    tables: Sequence[tuple[str, Table]],
) -> Path:
    """Write a page that needs nothing else, and return its path.

    Parameters
    ----------
    path : path
    title, subtitle : str
    figures : sequence of (name, value, remark)
        The first things to know.
    notes : sequence of str
    tables : sequence of (heading, Table)

    Raises
    ------
    InputError
        The file cannot be written.
    """
    target = Path(path)
    content = render(
        "table_page.html.j2",
        title=title,
        subtitle=subtitle,
        figures=figures,
        notes=notes,
        tables=tables,
    )
    with writing(target, "the report to"), whole_file(target, streams=True) as file:
        file.write(content.encode())
    return target
