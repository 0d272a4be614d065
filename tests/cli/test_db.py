"""``tvm-edge db``: each command, as text and as JSON, on good and on damaged records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Files, Invoke
from tests.records.made import DEVICE, failure, measured, record
from tvm_edge.hardware import resolve_target
from tvm_edge.records import Database, LinesFile, add_records, store_of, write_lines
from tvm_edge.schedules.conv_records import config_space
from tvm_edge.tuning.tunable import convolutions_of

KEY = DEVICE.key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's records: five measurements of two workloads, a failure, one of an old template."""
    folder = tmp_path / "logs"
    monkeypatch.setenv("TVM_EDGE_TUNING_LOGS", str(folder))
    records = [record(0, knob, 1e-3 * (knob + 1)) for knob in range(3)]
    records += [record(1, knob, 2e-3 * (knob + 1)) for knob in range(2)]
    add_records(folder, [*records, failure(1, 5), record(1, 7, 1e-6, template_version=0)])
    return folder


def test_list(folder: Path, invoke: Invoke) -> None:
    lines = folder / "arm" / "mali-t860.jsonl"
    write_lines(lines, [record()])
    (folder / "arm" / "broken.sqlite3").write_bytes(b"noise" * 1000)
    outcome = invoke("db", "list", "--json")
    own = [row for row in outcome.data if row["store"] == "user"]
    assert [Path(row["file"]).name for row in own] == [
        "broken.sqlite3",
        "mali-g52.sqlite3",
        "mali-t860.jsonl",
    ]
    assert "error" in own[0] and "broken.sqlite3" in outcome.err
    assert own[1]["devices"] == [KEY]
    assert [own[1][name] for name in ("records", "failed", "workloads")] == [7, 1, 2]
    text = invoke("db", "list").out
    assert KEY in text and str(lines) in text and "\x1b" not in text


def test_nothing_to_list_names_the_folder(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_EDGE_TUNING_LOGS", str(tmp_path / "none"))
    outcome = invoke("db", "list", "--json")
    assert outcome.code == 0 and not [r for r in outcome.data if r["store"] == "user"]
    assert invoke("db", "prune").code == 0


def test_show(folder: Path, invoke: Invoke) -> None:
    """The best of each workload; a device by its key or its file."""
    shown = invoke("db", "show", KEY, "--json").data
    assert [row["latencies"][0] for row in shown] == [1e-3, 1e-6]
    everything = invoke("db", "show", store_of(folder, KEY), "--all", "--json").data
    assert len(everything) == 7
    text = invoke("db", "show", KEY).out
    assert "1×8×12×12 16×8×3×3" in text and "rows=0" in text and "5 slower or failed" in text
    assert "MeasureTimeout" in invoke("db", "show", KEY, "--all").out


def test_an_unknown_store_exits_with_4(folder: Path, invoke: Invoke) -> None:
    outcome = invoke("db", "show", "arm/mali-g25")
    assert outcome.code == 4 and f"did you mean '{KEY}'" in outcome.err


def test_prune_says_how_many(folder: Path, invoke: Invoke) -> None:
    (row,) = invoke("db", "prune", "--keep", 1, "--json").data
    assert {name: row[name] for name in ("failed", "outdated", "slower", "kept")} == {
        "failed": 1,
        "outdated": 1,
        "slower": 3,
        "kept": 2,
    }
    text = invoke("db", "prune", "--keep", 1).out.splitlines()
    assert text[0].split() == ["failed", "unreadable", "outdated", "slower", "kept", "file"]
    assert text[1].split()[:5] == ["0", "0", "0", "0", "2"]


def test_prune_lines_as_a_database(folder: Path, tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "device.jsonl"
    assert invoke("db", "export", KEY, "-o", path).code == 0
    with path.open("a") as file:
        file.write('{"schema": 2}\n')
    (lines,) = invoke("db", "prune", path, "--keep", 1, "--json").data
    (database,) = invoke("db", "prune", KEY, "--keep", 1, "--json").data
    assert lines.pop("unreadable") == 1 and database.pop("unreadable") == 0
    assert {**lines, "file": ""} == {**database, "file": ""}
    with Database(store_of(folder, KEY)) as kept:
        assert set(LinesFile(path).all()[0]) == set(kept.all()[0])


def test_there_and_back(folder: Path, tmp_path: Path, invoke: Invoke) -> None:
    """Export, and import elsewhere: the same records, each with its device."""
    lines, other = tmp_path / "device.jsonl", tmp_path / "other"
    assert invoke("db", "export", KEY, "-o", lines, "--json").data["records"] == 7
    data = invoke("db", "import", lines, "--tuning-records", other, "--json").data
    assert data == {"read": 7, "files": [{"file": str(store_of(other, KEY)), "added": 7}]}
    again = tmp_path / "again.jsonl"
    invoke("db", "export", KEY, "--tuning-records", other, "-o", again)
    assert again.read_bytes() == lines.read_bytes()
    assert "0 new" in invoke("db", "import", lines, "--tuning-records", other).out
    assert invoke("db", "export", KEY, "--best", 1, "-o", lines, "--json").data["records"] == 2


def test_import_leaves_damaged_lines_out(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "device.jsonl"
    path.write_text(f'{record(0).to_json()}\n{{"schema": 9}}\n{record(1).to_json()[:50]}')
    outcome = invoke("db", "import", path, "--tuning-records", tmp_path / "logs", "--json")
    assert outcome.code == 0 and outcome.data["read"] == 1
    assert "schema 9" in outcome.err and f"{path}:3" in outcome.err


@pytest.mark.parametrize("suffix", ["jsonl", "sqlite3"])
def test_merge(folder: Path, tmp_path: Path, invoke: Invoke, suffix: str) -> None:
    """The later of two measurements stays, and nothing else is lost."""
    lines, output = tmp_path / "other.jsonl", tmp_path / f"merged.{suffix}"
    later = record(0, 0, 5.0, time="2027-01-01T00:00:00Z")
    write_lines(lines, [later, record(8, 8)])
    data = invoke("db", "merge", lines, KEY, "-o", output, "--json").data
    assert (data["read"], data["records"]) == (9, 8)
    merged = invoke("db", "show", output, "--all", "--json").data
    assert json.loads(later.to_json()) in merged and len(merged) == 8


def test_validate(folder: Path, invoke: Invoke) -> None:
    outcome = invoke("db", "validate", "--json")
    assert outcome.code == 0
    own = next(row for row in outcome.data if row["file"] == str(store_of(folder, KEY)))
    assert (own["records"], own["outdated"], own["problems"]) == (7, 1, [])
    path = folder / "arm" / "broken.jsonl"
    path.write_text("{")
    (folder / "arm" / "noise.sqlite3").write_bytes(b"noise" * 1000)
    outcome = invoke("db", "validate")
    assert outcome.code == 4
    assert f"{path}:1: not JSON" in outcome.out and "noise.sqlite3" in outcome.out
    assert invoke("db", "validate", KEY).code == 0


def test_layouts_are_validated(folder: Path, invoke: Invoke) -> None:
    path = folder / "arm" / "mali-g52.layouts"
    path.write_text("")
    outcome = invoke("db", "validate", "--json")
    assert outcome.code == 0
    assert {"file": str(path), "records": 0, "outdated": 0, "problems": []} in outcome.data
    path.write_text("{}\n")
    for arguments in ([], [path]):
        outcome = invoke("db", "validate", *arguments)
        assert outcome.code == 4 and f"{path}:1: a record of schema None" in outcome.out


def test_a_full_disk_exits_with_4(folder: Path, invoke: Invoke) -> None:
    outcome = invoke("db", "export", KEY, "-o", "/dev/full")
    assert outcome.code == 4 and "No space left" in outcome.err and "/dev/full" in outcome.err


@pytest.mark.parametrize("arguments", [["db", "frobnicate"], ["db", "export", "x"], ["db", "show"]])
def test_usage_errors_exit_with_2(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke(*arguments).code == 2


def test_commands_that_compile_take_records(files: Files, tmp_path: Path, invoke: Invoke) -> None:
    target = resolve_target("llvm")
    (conv,) = convolutions_of(files.model, target)
    config = config_space(conv, target.spec).configs[-1]
    path = tmp_path / "records.jsonl"
    write_lines(path, [measured(conv, config, target.spec, "llvm")])
    options = ("--tuning-records", path)
    data = invoke("analyze", files.model, *options, "--json").data
    assert data["records"]["tuned"] == data["records"]["convolutions"] == 1
    assert "1 of 1 convolutions covered" in invoke("analyze", files.model, *options).out
    output = ("-o", tmp_path / "model.tvme")
    assert "1 of 1 convolutions" in invoke("compile", files.model, *options, *output).out
    none = invoke("analyze", files.model, "--tuning-records", "none", "--json").data
    assert none["records"] is None
    assert invoke("bench", files.model, *options, "--repeat", 1).code == 0
    outcome = invoke("run", files.artifact, *options)
    assert outcome.code == 4 and "--tuning-records" in outcome.err
    absent = invoke("compile", files.model, "--tuning-records", tmp_path / "absent")
    assert absent.code == 4 and "tvm-edge db list" in absent.err
