"""Which record goes before which."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.records.made import DEVICE, failure, record, workload
from tvm_edge.errors import RecordError
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


def all_of(library: RecordLibrary, count: int) -> list[TuningRecord]:
    return [
        each.record
        for number in range(count)
        for each in library.of_device(workload(number), "opencl")
    ]


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, list[TuningRecord]]:
    """A database of some 40 pages, and its records."""
    records = [record(number, knob, 1.0 + knob) for number in range(40) for knob in range(5)]
    add_records(tmp_path, records)
    path = store_of(tmp_path, DEVICE.key)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path, records


@pytest.mark.parametrize("place", [0.3, 0.5, 0.9])
def test_damage_in_the_middle_is_said_once_and_costs_its_page(
    tmp_path: Path, many: tuple[Path, list[TuningRecord]], place: float
) -> None:
    """SQLite reads a page that is not asked about on its way without a word."""
    path, records = many
    content = bytearray(path.read_bytes())
    start = int(len(content) * place) // 4096 * 4096
    content[start : start + 4096] = np.random.default_rng(0).bytes(4096)
    path.write_bytes(content)
    with RecordLibrary(DEVICE, tmp_path, tmp_path / "none") as library:
        found = all_of(library, 40)
        (said,) = library.warnings
    assert str(path) in said and f"{len(found)} records" in said
    assert set(found) <= set(records) and len(found) > 0.9 * len(records)
    with RecordLibrary(DEVICE, tmp_path, tmp_path / "none") as library:
        assert all_of(library, 40) == found and not library.warnings
    (aside,) = path.parent.glob("*.damaged-*[0-9]")
    assert aside.read_bytes() == content, "nothing is deleted"


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_makes_another_record(
    tmp_path: Path, many: tuple[Path, list[TuningRecord]], seed: int
) -> None:
    """Whatever a bit does to the pages, what compile chooses by was measured."""
    path, records = many
    whole, rng = path.read_bytes(), np.random.default_rng(seed)
    known = {(each.identity, each.cost) for each in records}
    for _ in range(4):
        content = bytearray(whole)
        for at in rng.integers(100, len(content), 3):
            content[at] ^= 1 << int(rng.integers(8))
        for each in path.parent.iterdir():
            each.unlink()
        path.write_bytes(content)
        with RecordLibrary(DEVICE, tmp_path, tmp_path / "none") as library:
            assert {(each.identity, each.cost) for each in all_of(library, 40)} <= known


def plant_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("plant", "words"),
    [(plant_empty, "empty file"), (Path.mkdir, "is a folder"), (os.mkfifo, "no regular file")],
)
def test_what_stands_in_a_databases_place_is_named(
    tmp_path: Path, plant: Callable[[Path], None], words: str
) -> None:
    path = store_of(tmp_path, DEVICE.key)
    path.parent.mkdir()
    plant(path)
    with RecordLibrary(DEVICE, tmp_path, tmp_path / "none") as library:
        assert not all_of(library, 1)
        (said,) = library.warnings
    assert str(path) in said and words in said
    if words != "empty file":  # which becomes a database
        with pytest.raises(RecordError, match=words):
            add_records(tmp_path, [record()])
