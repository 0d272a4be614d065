"""Which record goes before which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.records.made import DEVICE, failure, record, workload
from tvm_edge.records import (
    Database,
    RecordLibrary,
    TuningRecord,
    add_records,
    store_of,
    write_lines,
)

SIBLING = replace(DEVICE, key="arm/mali-g51")
COUSIN = replace(DEVICE, key="arm/mali-a1", architecture="arm/wave4-local-global")


def found(user: Path, shipped: Path, kind: str = "opencl") -> list[tuple[str, TuningRecord]]:
    with RecordLibrary(DEVICE, user, shipped) as library:
        candidates = list(library.candidates(workload(), kind))
        assert not library.warnings
    return [(each.nearness, each.record) for each in candidates]


def test_the_device_then_its_architecture_then_its_vendor(tmp_path: Path) -> None:
    """Whatever their latencies; within a device what the user measured, then the faster."""
    user, shipped = tmp_path / "user", tmp_path / "shipped"
    own = [record(0, 0, 3.0), record(0, 1, 2.0), failure(0, 2), record(1, 0, 0.1)]
    sibling, cousin = record(0, 4, 0.5, device=SIBLING), record(0, 5, 0.2, device=COUSIN)
    foreign = record(0, 6, 0.1, device=replace(DEVICE, key="intel/hd505"))
    add_records(user, [*own, cousin, foreign])
    ours, theirs = record(0, 3, 1.0), sibling
    write_lines(shipped / f"{DEVICE.key}.jsonl", [ours])
    write_lines(shipped / f"{SIBLING.key}.jsonl", [theirs])
    assert found(user, shipped) == [
        ("device", own[1]),
        ("device", own[0]),
        ("device", ours),
        ("architecture", sibling),
        ("vendor", cousin),
    ]
    assert not found(user, shipped, "cuda")


def test_one_file_of_many_devices(tmp_path: Path) -> None:
    path = tmp_path / "all.sqlite3"
    records = [record(0, 0, 1.0, device=COUSIN), record(0, 1, 2.0), record(0, 2, 3.0)]
    with Database(path) as database:
        database.add(records)
    assert [each for _, each in found(path, tmp_path / "none")] == [*records[1:], records[0]]


def test_folders_that_do_not_exist_are_empty(tmp_path: Path) -> None:
    assert not found(tmp_path / "one", tmp_path / "other")


def test_a_record_that_is_damaged_inside_is_left_out_and_said(tmp_path: Path) -> None:
    add_records(tmp_path, [record(0, 0, 1.0), record(0, 1, 2.0)])
    with Database(store_of(tmp_path, DEVICE.key)) as database:
        database._connection.execute("UPDATE records SET record = '{\"schema\": 7}' WHERE cost = 1")
    with RecordLibrary(DEVICE, tmp_path, tmp_path / "none") as library:
        assert [each.record for each in library.candidates(workload(), "opencl")] == [
            record(0, 1, 2.0)
        ]
        (said,) = library.warnings
    assert "schema 7" in said and "mali-g52" in said
