"""Errors of SQLite as errors of ours, and damaged databases, which are set aside.

Python 3.10 has no codes in SQLite's exceptions, so that their messages tell them apart.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock

from tvm_edge.errors import RecordError

__all__ = ["DamagedDatabase", "lock_of", "set_aside", "translated"]

_DAMAGED = ("malformed", "not a database", "malformed database schema")
_BESIDE = ("-wal", "-shm")


class DamagedDatabase(RecordError):
    """Database whose file is damaged.

    Attributes
    ----------
    found : str
        The damage, without what to type.
    """

    def __init__(self, path: Path, said: str) -> None:
        self.found = f"the record database {str(path)!r} is damaged ({said})"
        super().__init__(f"{self.found}; to look for its records: sqlite3 {path} .recover")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's exceptions into errors that name the file and what to do.

    Raises
    ------
    DamagedDatabase, RecordError
    """
    try:
        yield
    except sqlite3.DatabaseError as err:
        said = str(err)
        if any(text in said for text in _DAMAGED):
            raise DamagedDatabase(path, said) from err
        if "full" in said:
            advice = "nothing of the last batch was written, and what stood there stands: make room"
        elif "locked" in said:
            advice = "another process keeps it: wait for it, or end it"
        else:
            advice = "check that the folder exists and that you may write to it"
        raise RecordError(f"the record database {str(path)!r}: {said}; {advice}") from err
    except OSError as err:
        raise RecordError(
            f"the record database {str(path)!r}: {err.strerror or err}; choose another folder by "
            "TVM_EDGE_TUNING_LOGS"
        ) from err


def lock_of(path: Path) -> FileLock:
    """Return the lock for making a database or setting it aside, not for reading or writing."""
    return FileLock(path.with_name(f".{path.name}.lock"), timeout=60)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged database, so that a new one may take its place.

    Nothing is deleted: ``sqlite3 FILE .recover`` may still find records.

    Returns
    -------
    Path or None
        The file's new name; ``None`` if another process was faster, and it is whole again.
    """
    with lock_of(path):
        if not path.exists() or _is_whole(path):
            return None
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        aside = path.with_name(f"{path.name}.damaged-{now}")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.damaged-{now}-{number}")
        path.rename(aside)
        for suffix in _BESIDE:  # the log belongs to the file: a new database must not replay it
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _is_whole(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as err:
        return not any(text in str(err) for text in _DAMAGED)
    return bool(found == ("ok",))
