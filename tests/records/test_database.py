"""The user's database: several writers, crashes, damage, a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.records.made import DEVICE, failure, record, workload
from tests.runtime.support import child_environment
from tvm_edge.errors import RecordError
from tvm_edge.records import (
    DamagedDatabase,
    Database,
    Pruned,
    add_records,
    make_room,
    open_store,
    store_of,
)
from tvm_edge.records.database import BEST

PROCESSES, RECORDS, BATCH = 3, 80, 20

WRITER = """
import sys
from pathlib import Path
from tests.records.made import record
from tvm_edge.records import Database
path, writer, count, batch = Path(sys.argv[1]), *map(int, sys.argv[2:])
with Database(path) as database:
    for start in range(0, count, batch):
        made = [record(i % 7, 10 * i + writer) for i in range(start, start + batch)]
        database.add([*made, record(0, -1, cost=1 + writer)])  # and one that all of them measure
        print(start + batch, flush=True)
"""


def start_writer(path: Path, number: int, count: int = RECORDS) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, (path, number, count, BATCH))],
        env=child_environment({}),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    """They start together, so that they race to make the database as well."""
    path = tmp_path / "arm" / "mali-g52.sqlite3"
    writers = [start_writer(path, number) for number in range(PROCESSES)]
    for writer in writers:
        writer.communicate(timeout=240)
        assert writer.returncode == 0
    with Database(path, readonly=True) as database:
        records, damages = database.all()
        assert not damages and not database.damages()
    assert len(records) == PROCESSES * RECORDS + 1
    knobs = {r.config["rows"] for r in records}
    assert knobs == {10 * i + w for i in range(RECORDS) for w in range(PROCESSES)} | {-1}


def test_a_killed_writer_leaves_what_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite3"
    writer = start_writer(path, 0, 1_000_000)
    assert writer.stdout is not None
    said = 0
    while said < 10 * BATCH:
        said = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait(30)
    with Database(path) as database:
        assert database.counts().records > said
        assert not database.damages()
        assert database.add([record(0, -2)]) == 1


def test_of_two_measurements_the_later_stays_in_either_order(tmp_path: Path) -> None:
    early = record(time="2026-01-01T00:00:00Z")
    late, failed = record(cost=2.0), failure(time="2027-01-01T00:00:00Z")
    for name, order in (("one", [early, late, failed]), ("other", [failed, late, early])):
        with Database(tmp_path / name) as database:
            for each in order:
                database.add([each])
            assert database.all()[0] == [late]
            assert database.add([late]) == 0


def test_prune_keeps_the_best_of_each_workload(tmp_path: Path) -> None:
    with Database(tmp_path / "device.sqlite3") as database:
        database.add(record(number, knob, 1.0 + knob) for number in range(3) for knob in range(5))
        database.add([failure(0, 90), failure(9, 0)])
        with closing(sqlite3.connect(database.path)) as other:
            other.execute("UPDATE records SET record = '{}' WHERE cost = 5.0")
            other.commit()
        database.add([record(4, 0, 0.1, template_version=0)])
        pruned = database.prune(2, outdated=lambda r: "" if r.template_version else "old")
        assert pruned == Pruned(failed=2, unreadable=3, outdated=1, slower=6, kept=6)
        assert {(r.workload.key, r.cost) for r in database.all()[0]} == {
            (workload(number).key, 1.0 + knob) for number in range(3) for knob in range(2)
        }


def test_a_full_disk_is_said_and_the_database_stays_whole(tmp_path: Path) -> None:
    with Database(tmp_path / "device.sqlite3") as database:
        database.add([record(0)])
        pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
        database._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(RecordError, match=r"full; .* make room") as caught:
            database.add(record(1, knob) for knob in range(1000))
        assert str(database.path) in str(caught.value)
        assert not isinstance(caught.value, DamagedDatabase)
        assert database.all()[0] == [record(0)], "all of a batch or nothing"
        assert database.add([record(2)]) == 1
    with Database(database.path) as database:
        assert not database.damages() and database.counts().records == 2


@pytest.mark.parametrize("how", ["noise", "a page", "empty header"])
def test_a_damaged_database_is_set_aside(tmp_path: Path, how: str) -> None:
    path = store_of(tmp_path, DEVICE.key)
    add_records(tmp_path, [record(i, j) for i in range(10) for j in range(10)])
    content = bytearray(path.read_bytes())
    if how == "noise":
        content = bytearray(os.urandom(20_000))
    elif how == "a page":  # that of the tables
        content[100:4096] = os.urandom(3996)
    else:
        content[:16] = bytes(16)
    path.write_bytes(content)
    added = add_records(tmp_path, [record(77)])
    (aside,) = path.parent.glob("*.damaged-*[0-9]")
    assert aside.read_bytes() == content, "nothing is deleted"
    assert added.files == {path: 1}
    (said,) = added.warnings
    assert str(path) in said and str(aside) in said
    with Database(path) as database:
        assert database.all()[0] == [record(77)]


def test_a_whole_database_is_not_set_aside(tmp_path: Path) -> None:
    """Another process may have put a new one in the place of the damaged one meanwhile."""
    add_records(tmp_path, [record(0)])
    path = store_of(tmp_path, DEVICE.key)
    assert "another process" in make_room(path, DamagedDatabase(path, "damaged"))
    assert path.exists() and not list(path.parent.glob("*.damaged-*"))


def test_foreign_databases_are_refused_and_stay(tmp_path: Path) -> None:
    other, later = tmp_path / "other.sqlite3", tmp_path / "later.sqlite3"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE cookies (name TEXT)")
    Database(later).close()
    with closing(sqlite3.connect(later)) as connection:
        connection.execute("PRAGMA user_version = 2")
    for path, said in ((other, "of another program"), (later, "has layout 2")):
        for readonly in (True, False):
            with pytest.raises(RecordError, match=said):
                Database(path, readonly=readonly)
        assert path.exists()


def test_absent_and_misnamed_files_are_said(tmp_path: Path) -> None:
    (tmp_path / "records.txt").write_text("")
    for name, said in (("no.sqlite3", "there is no"), ("no.jsonl", "cannot read")):
        with pytest.raises(RecordError, match=said):
            open_store(tmp_path / name)
    with pytest.raises(RecordError, match="by its name"):
        open_store(tmp_path / "records.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="choose another folder"):
        add_records(tmp_path / "file", [record(0)])


def test_a_writer_does_not_wait_for_readers(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite3"
    with Database(path) as writer, Database(path, readonly=True) as reader:
        writer.add([record(0)])
        writer._connection.execute("PRAGMA busy_timeout = 0")  # waiting would be an error
        reader._connection.execute("BEGIN")
        assert reader.counts().records == 1
        assert writer.add([record(1)]) == 1
        assert reader.counts().records == 1, "what it began to read"


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_a_lookup_among_many_reads_an_index(tmp_path: Path, count: int) -> None:
    with Database(tmp_path / "device.sqlite3") as database:
        database.add(record(i // 10, i % 10, 1 + (7 * i) % 10) for i in range(count))
        number = count // 20
        found, _ = database.best(workload(number), "opencl", 3)
        assert [r.cost for r in found] == [1, 2, 3]
        assert all(r.workload == workload(number) for r in found)
        query = "EXPLAIN QUERY PLAN " + BEST
        plan = database._connection.execute(query, ("", "", 1)).fetchall()
    steps = [step for *_, step in plan]
    assert any("USING INDEX best (workload=? AND kind=?" in step for step in steps), steps
    assert not any(step.startswith("SCAN") for step in steps), steps
