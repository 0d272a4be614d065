"""Lookup of the record stores that a ``tvm-edge db`` command names, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tvm_edge.errors import RecordError, near_matches
from tvm_edge.records import DATABASE, LINES, SHIPPED, store_of, stores_below, user_folder

__all__ = ["columns", "find_store", "folder_option", "known_stores"]

_F = TypeVar("_F", bound=Callable[..., Any])


def folder_option(command: _F) -> _F:
    """``--tuning-records``: the folder of the user's own."""
    return click.option(
        "--tuning-records",
        "folder",
        type=click.Path(path_type=Path),
        help="Folder in place of your own.",
    )(command)


def known_stores(folder: Path | None) -> list[Path]:
    """The user's files of records, and those that ship."""
    return [*stores_below(user_folder(folder)), *stores_below(SHIPPED)]


def find_store(name: str, folder: Path | None) -> Path:
    """The file that a device's key or a path names; the user's goes before what ships.

    Raises
    ------
    RecordError
    """
    path = Path(name)
    if path.is_file():
        return path
    own = user_folder(folder)
    named = [
        store_of(place, name, suffix) for place in (own, SHIPPED) for suffix in (DATABASE, LINES)
    ]
    for candidate in named:
        if candidate.is_file():
            return candidate
    keys = {
        path.relative_to(place).with_suffix("").as_posix()
        for place in (own, SHIPPED)
        if place.is_dir()
        for path in stores_below(place)
    }
    raise RecordError(
        f"{name!r} is neither a file of records nor a device with records; "
        f"{near_matches(name, keys)}"
    )


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )
