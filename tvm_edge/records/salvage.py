"""Records of a damaged database that can still be read."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from tvm_edge.errors import RecordError
from tvm_edge.records.database import COLUMNS, Row, record_of
from tvm_edge.records.tuning_record import TuningRecord

__all__ = ["salvage"]

_MOST = 1 << 20  # rows between two damaged pages that are asked for one by one


def salvage(path: Path) -> list[TuningRecord]:
    """Return the records of a damaged database that are whole, in the order they were written."""
    rows: dict[int, Row] = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=30)) as connection:
        query = f"SELECT rowid, {COLUMNS} FROM records NOT INDEXED"
        # From both ends up to the damage, and then whatever row SQLite still finds between.
        ends = []
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.Error):
                for number, *row in connection.execute(f"{query} ORDER BY rowid {order}"):
                    if number in rows:
                        break
                    rows[number] = tuple(row)
                    ends.append(number)
        for first, last in pairwise(sorted(ends)):
            for number in range(first + 1, min(last, first + _MOST)):
                with suppress(sqlite3.Error):
                    for row in connection.execute(f"{query} WHERE rowid = ?", (number,)):
                        rows[number] = tuple(row)
    records = []
    for number in sorted(rows):
        with suppress(RecordError, TypeError, ValueError):
            records.append(record_of(rows[number]))
    return records
