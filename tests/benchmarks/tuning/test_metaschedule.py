"""A run of many minutes that is stopped keeps what it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tuning import metaschedule


def _child(_module: str, job: str, number: int, *arguments: object) -> dict[str, Any]:
    if number == 1:
        raise KeyboardInterrupt
    if job == "trials":
        return {"configs": 100, "trials": 15}
    if job == "time":
        return {"us": 10.0 if arguments[1] == "ours" else 30.0}
    assert arguments[1] == 24, "trials"
    return {"seconds": 1.0, "measured": 24, "best_us": 9.0}


def test_rows_are_written_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    monkeypatch.setattr(metaschedule, "run_child", _child)
    arguments = ["--spaces", "0", "1", "--trials", "24", "--rounds", "2", "--json", str(path)]
    with pytest.raises(KeyboardInterrupt):
        metaschedule.main(arguments)
    row = json.loads(path.read_text())["0"]
    assert row["trials"] == 24
    assert row["us"] == {"ours": [10.0, 10.0], "metaschedule": [30.0, 30.0]}
    lines = capsys.readouterr().out
    assert "ours: 24 measured in 1 s, best 9.00 µs" in lines
    assert "time 2 of 2, metaschedule: 30.00 µs" in lines
