"""Records that ship: readable, diffable, and a damaged line costs only itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.records.made import failure, record, workload
from tvm_edge.errors import RecordError
from tvm_edge.records import SHIPPED, Database, LinesFile, stores_below, write_lines


def test_the_same_records_make_the_same_file(tmp_path: Path) -> None:
    """Whatever their order, so that files can be compared; the best of a workload first."""
    records = [record(0, 2, 3.0), record(1, 0, 1.0), record(0, 1, 2.0), failure(0, 3)]
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    assert write_lines(one, records) == write_lines(other, [*reversed(records), records[0]]) == 4
    assert one.read_bytes() == other.read_bytes()
    found, damages = LinesFile(one).all()
    assert set(found) == set(records) and not damages
    best, _ = LinesFile(one).best(workload(), "opencl", 10)
    assert list(best) == [records[2], records[0]]


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "device.jsonl"
    good = [record(i).to_json().encode() for i in range(3)]
    path.write_bytes(b"\n".join([good[0], b"\xff\xfe{", good[1], b"", good[2][:80]]))
    records, damages = LinesFile(path).all()
    assert list(records) == [record(0), record(1)]
    assert [d.where for d in damages] == [f"{path}:2", f"{path}:5"]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "device.jsonl"
    write_lines(path, [record(0)])
    assert len(LinesFile(path).all()[0]) == 1
    write_lines(path, [record(0), record(1)])
    assert len(LinesFile(path).all()[0]) == 2


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "device.jsonl"
    write_lines(path, [record(0)])
    before = path.read_bytes()

    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="No space left on device; make room") as caught:
        write_lines(path, [record(1)])
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device_is_said() -> None:
    with pytest.raises(RecordError, match="No space left"):
        write_lines(Path("/dev/full"), [record(0)])


def test_what_ships_is_whole(tmp_path: Path) -> None:
    """Every line of it, and each in the file of its device."""
    for path in stores_below(SHIPPED):
        records, damages = LinesFile(path).all()
        assert not damages
        assert {path} == {SHIPPED / f"{r.device.key}.jsonl" for r in records}


def test_lines_and_database_agree(tmp_path: Path) -> None:
    records = [record(i % 3, i, 1.0 + (7 * i) % 5) for i in range(20)] + [failure(1, 99)]
    path = tmp_path / "device.jsonl"
    write_lines(path, records)
    with Database(tmp_path / "device.sqlite3") as database:
        database.add(records)
        for number in range(4):
            lines = LinesFile(path).best(workload(number), "opencl", 5)[0]
            assert list(lines) == database.best(workload(number), "opencl", 5)[0]
        assert set(database.all()[0]) == set(LinesFile(path).all()[0]) == set(records)
