"""Folders of tuning records: beside the package those that ship, in the user's data the user's."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["DATABASE", "LINES", "SHIPPED", "store_of", "stores_below", "user_folder"]

LINES, DATABASE = ".jsonl", ".sqlite3"
_SUFFIXES = (LINES, DATABASE)

SHIPPED = Path(__file__).parents[1] / "tuning_logs"
"""Folder of the tuning records that come with the package."""


def user_folder(chosen: str | os.PathLike[str] | None = None) -> Path:
    """Return the chosen folder, else ``TVM_EDGE_TUNING_LOGS``, else the platform's place."""
    named = chosen or os.environ.get("TVM_EDGE_TUNING_LOGS")
    if named:
        return Path(named).expanduser()
    return platformdirs.user_data_path("tvm-edge", appauthor=False) / "tuning_logs"


def store_of(folder: Path, key: str, suffix: str = DATABASE) -> Path:
    """Return the file of one device's records, ``<vendor>/<device>.sqlite3``."""
    return folder / f"{key}{suffix}"


def stores_below(folder: Path, vendor: str = "") -> list[Path]:
    """List files of records in a folder, of one vendor if named; `folder` may be a file."""
    if folder.is_file():
        return [folder]
    found = (folder / vendor).rglob("*") if vendor else folder.rglob("*")
    return sorted(
        path
        for path in found
        if path.suffix in _SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
