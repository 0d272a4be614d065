"""SQLite database of a device's tuning records, for several writers at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tvm_edge.errors import RecordError
from tvm_edge.records.json_lines import Damage
from tvm_edge.records.sqlite_errors import DamagedDatabase, lock_of, translated
from tvm_edge.records.totals import Counts, Pruned
from tvm_edge.records.tuning_record import TuningRecord, Workload

__all__ = ["BEST", "COLUMNS", "Database", "Row", "record_of"]

_APPLICATION = 0x54564D45  # "TVME"
_LAYOUT = 1  # of the tables
_WAIT_S = 60  # for another writer

_TABLES = """
CREATE TABLE records (
    device TEXT NOT NULL,
    kind TEXT NOT NULL,              -- of target
    workload TEXT NOT NULL,          -- its digest
    template TEXT NOT NULL,
    version INTEGER NOT NULL,        -- of the template
    config TEXT NOT NULL,            -- hash of the knobs
    cost REAL,                       -- median seconds; NULL of a failure
    time TEXT NOT NULL,
    record TEXT NOT NULL,            -- all of it, as JSON
    UNIQUE (workload, kind, device, template, version, config)
);
CREATE INDEX best ON records (workload, kind, cost) WHERE cost IS NOT NULL;
"""

COLUMNS = "device, kind, workload, template, version, config, cost, time, record"

# As TuningRecord.standing: a measurement before a failure, then the later one.
_ADD = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (workload, kind, device, template, version, config)
DO UPDATE SET cost = excluded.cost, time = excluded.time, record = excluded.record
WHERE (excluded.cost IS NOT NULL, excluded.time, excluded.record) > (cost IS NOT NULL, time, record)
"""

BEST = f"""
SELECT {COLUMNS} FROM records WHERE workload = ? AND kind = ? AND cost IS NOT NULL
ORDER BY cost, record LIMIT ?
"""

Row = tuple[Any, ...]
"""Values of :data:`COLUMNS`."""

_PRUNED = """
DELETE FROM records WHERE rowid NOT IN (
    SELECT id FROM (
        SELECT rowid AS id, row_number() OVER (
            PARTITION BY workload, kind, device ORDER BY cost, record
        ) AS place FROM records WHERE cost IS NOT NULL
    ) WHERE place <= ?
)
"""


class Database:
    """File of tuning records.

    Write-ahead logging lets others read while one writes; writers wait for each other. A process
    that is killed leaves what it had committed.

    Parameters
    ----------
    path : Path
        Made, with its folder, unless `readonly`.
    readonly : bool

    Raises
    ------
    RecordError
        The file cannot be opened, is of another program or a later version.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        if (path.exists() or path.is_symlink()) and not path.is_file():
            what = "a folder" if path.is_dir() else "no regular file"
            raise RecordError(
                f"{str(path)!r} is {what}, and the record database belongs there; move it away"
            )
        if readonly and path.exists() and not path.stat().st_size:
            raise RecordError(
                f"the record database {str(path)!r} is an empty file, as a full disk or a cut "
                "copy leaves one; remove it, or put the database back"
            )
        with translated(path):
            self._connection = _open(path, readonly=readonly)
        try:
            with translated(path):
                if readonly:
                    self._check()
                else:
                    with lock_of(path):  # changing to the log waits for nobody
                        self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):  # what was committed is there, and a reader has its answer
            self._connection.close()

    def add(self, records: Iterable[TuningRecord]) -> int:
        """Write records in one transaction: all of them or none.

        Of two records of one identity the one of higher :attr:`TuningRecord.standing` stays,
        whatever their order.

        Returns
        -------
        int
            How many were new or took another's place.
        """
        with translated(self.path), self._transaction():
            before = self._connection.total_changes
            self._connection.executemany(_ADD, map(_row, records))
            return self._connection.total_changes - before

    def best(
        self, workload: Workload, kind: str, limit: int
    ) -> tuple[list[TuningRecord], list[Damage]]:
        """Return the fastest records of a workload, best first.

        Parameters
        ----------
        workload : Workload
        kind : str
            Of target.
        limit : int
        """
        with translated(self.path):
            rows = self._connection.execute(BEST, (workload.digest, kind, limit)).fetchall()
        return self._read(rows)

    def all(self) -> tuple[list[TuningRecord], list[Damage]]:
        """Return every record, those of a workload together, its best first, failures last."""
        with translated(self.path):
            rows = self._connection.execute(
                f"SELECT {COLUMNS} FROM records "
                "ORDER BY device, kind, workload, cost IS NULL, cost, record"
            ).fetchall()
        return self._read(rows)

    def counts(self) -> Counts:
        """Count records, failures and workloads."""
        with translated(self.path):
            row = self._connection.execute(
                "SELECT count(*), count(*) - count(cost), count(DISTINCT workload) FROM records"
            ).fetchone()
        return Counts(*row)

    def devices(self) -> list[str]:
        """Return the keys of the devices that its records are of."""
        with translated(self.path):
            rows = self._connection.execute("SELECT DISTINCT device FROM records ORDER BY device")
            return [key for (key,) in rows]

    def prune(self, keep: int, outdated: Callable[[TuningRecord], str] = lambda _: "") -> Pruned:
        """Keep the fastest `keep` records of each workload that hold; drop failures as well.

        Parameters
        ----------
        keep : int
        outdated : callable
            Why a record does not hold any more; empty if it does.
        """
        with translated(self.path), self._transaction():
            rows = self._connection.execute("SELECT rowid, record FROM records")
            unreadable, old = [], []
            for row, text in rows:
                try:
                    record = TuningRecord.from_json(text)
                except RecordError:
                    unreadable.append((row,))
                else:
                    if record.latencies and outdated(record):
                        old.append((row,))
            self._connection.executemany("DELETE FROM records WHERE rowid = ?", [*unreadable, *old])
            before = self.counts()
            self._connection.execute(_PRUNED, (keep,))
            after = self.counts()
        slower = before.records - before.failed - after.records
        return Pruned(before.failed, len(unreadable), len(old), slower, after.records)

    def damages(self) -> list[Damage]:
        """Check the file: by SQLite's own check, then for records that cannot be read."""
        with translated(self.path):
            found = self._connection.execute("PRAGMA integrity_check").fetchall()
        broken = [Damage(str(self.path), text) for (text,) in found if text != "ok"]
        return broken + self.all()[1]

    def check_pages(self) -> None:
        """Check the pages of a file that changed since somebody checked them.

        SQLite itself notices damage in pages that it reads alone, and not in each of them. Of a
        million records it takes seconds, so that a file beside the database says when it was done.

        Raises
        ------
        DamagedDatabase
        """
        stamp = _stamp(self.path)
        checked = self.path.with_name(f".{self.path.name}.checked")
        with suppress(OSError, ValueError):
            if checked.read_text() == stamp:
                return
        with translated(self.path):
            (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DamagedDatabase(self.path, found.splitlines()[-1])
        with suppress(OSError):  # it is only slower without
            checked.write_text(stamp)

    def _read(self, rows: list[Row]) -> tuple[list[TuningRecord], list[Damage]]:
        records, damages = [], []
        for row in rows:
            try:
                records.append(record_of(row))
            except RecordError as err:
                damages.append(Damage(str(self.path), str(err)))
        return records, damages

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # Of its own accord SQLite has rolled back where the disk is full.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _make(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        empty = not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty:
            self._connection.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_LAYOUT};"
                f"{_TABLES} COMMIT;"
            )
        self._check()

    def _check(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (layout,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise RecordError(
                f"{str(self.path)!r} is a database of another program; name one of records, or "
                "move it away"
            )
        if layout != _LAYOUT:
            raise RecordError(
                f"the record database {str(self.path)!r} has layout {layout}, and this version of "
                f"tvm-edge reads {_LAYOUT}; export it with the version that wrote it, and "
                "tvm-edge db import the file"
            )


def _open(path: Path, *, readonly: bool) -> sqlite3.Connection:
    if not readonly:
        path.parent.mkdir(parents=True, exist_ok=True)
    mode = "ro" if readonly else "rwc"
    log = path.with_name(path.name + "-wal")
    if readonly and path.exists() and not os.access(path.parent, os.W_OK) and not log.exists():
        mode += "&immutable=1"  # readers keep a file beside the log, which they cannot make here
    # isolation_level=None: transactions begin and end where this module says so.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_WAIT_S, isolation_level=None
    )


def _stamp(path: Path) -> str:
    """Return what changes when anybody writes to a database or its log."""
    found = []
    for each in (path, path.with_name(path.name + "-wal")):
        with suppress(OSError):
            status = each.stat()
            # A log without content is there while somebody reads.
            if status.st_size:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return repr(found)


def record_of(row: Row) -> TuningRecord:
    """Return a row's record.

    Raises
    ------
    RecordError
        It is none, or says something else than the columns beside it.
    """
    record = TuningRecord.from_json(row[-1])
    if _row(record)[:-1] != tuple(row[:-1]):
        raise RecordError("a record that differs from what the database says of it")
    return record


def _row(record: TuningRecord) -> Row:
    cost = record.cost if record.latencies else None
    return (*record.identity, cost, record.time, record.to_json())
