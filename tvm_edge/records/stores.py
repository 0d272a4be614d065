"""Stores of tuning records, opened by their suffix, and written device by device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_edge.errors import RecordError
from tvm_edge.records.database import Database
from tvm_edge.records.folders import DATABASE, LINES, store_of
from tvm_edge.records.json_lines import LinesFile
from tvm_edge.records.salvage import salvage
from tvm_edge.records.sqlite_errors import DamagedDatabase, set_aside
from tvm_edge.records.tuning_record import TuningRecord

__all__ = ["Added", "add_records", "make_room", "open_store", "prepare_store"]


@dataclass(frozen=True)
class Added:
    """Records that were written, by file.

    Attributes
    ----------
    files : dict of Path to int
        How many records of each file are new or took the place of another.
    warnings : tuple of str
        What the user should know.
    """

    files: dict[Path, int]
    warnings: tuple[str, ...]


def open_store(path: Path) -> LinesFile | Database:
    """Open a file of tuning records for reading.

    Raises
    ------
    RecordError
        It cannot be read, or its suffix is no store's.
    """
    if path.suffix == LINES or not (path.suffix == DATABASE or path.is_file()):
        return LinesFile(path)
    if path.suffix != DATABASE:
        raise RecordError(
            f"{str(path)!r} is no file of records by its name; they end in {LINES} or {DATABASE}"
        )
    if not path.exists():
        raise RecordError(f"there is no {str(path)!r}; tvm-edge db list shows the files there are")
    return Database(path, readonly=True)


def add_records(folder: Path, records: Iterable[TuningRecord]) -> Added:
    """Write records into the databases of their devices.

    A damaged database is set aside, and a new one takes the records.

    Raises
    ------
    RecordError
        A file cannot be written: those of other devices may have been.
    """
    by_device: defaultdict[str, list[TuningRecord]] = defaultdict(list)
    for record in records:
        by_device[record.device.key].append(record)
    files: dict[Path, int] = {}
    warnings: list[str] = []
    for key, own in by_device.items():
        path = store_of(folder, key)
        files[path] = _add(path, own, warnings)
    return Added(files, tuple(warnings))


def prepare_store(folder: Path, key: str) -> tuple[str, ...]:
    """Make the database of a device, or see that records can be added to the one there is.

    Returns
    -------
    tuple of str
        What the user should know.

    Raises
    ------
    RecordError
        It cannot be written, or is another program's.
    """
    warnings: list[str] = []
    _add(store_of(folder, key), (), warnings)
    return tuple(warnings)


def _add(path: Path, records: Sequence[TuningRecord], warnings: list[str]) -> int:
    try:
        with Database(path) as database:
            database.check_pages()
            return database.add(records)
    except DamagedDatabase as err:
        warnings.append(make_room(path, err))
    with Database(path) as database:
        return database.add(records)


def make_room(path: Path, err: DamagedDatabase) -> str:
    """Set a damaged database aside, with a new one of its good records; say so."""
    try:
        aside = set_aside(path)
    except OSError as other:
        return f"{err.found}; it is left out, and cannot be renamed ({other.strerror or other})"
    if aside is None:
        return f"{err.found}; another process has set it aside"
    try:
        records = salvage(aside)
        with Database(path) as database:
            database.add(records)
    except RecordError as other:
        return f"{err.found}; it is now {str(aside)!r}, and no new one can be made: {other}"
    return (
        f"{err.found}; it is now {str(aside)!r}, and the {len(records)} records that could be read "
        f"are in a new database (to look for others: sqlite3 {aside} .recover)"
    )
