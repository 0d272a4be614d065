"""``tvm-edge compare``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Files, Invoke
from tests.workflow import faults


def test_a_right_model(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = invoke("compare", files.model, "--inputs", files.inputs, "--html", page, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["within"] and outcome.data["first"] is None
    assert [node["node"] for node in outcome.data["nodes"]] == ["conv", "relu", "pool"]
    text = page.read_text(encoding="utf-8")
    assert "beside ONNX Runtime" in text and "made at" in text.lower()


def test_check_fails_for_a_wrong_model(
    invoke: Invoke, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.in_kernel(monkeypatch, "conv2d")
    dump = tmp_path / "dump"
    options = ("--tuning-records", "none", "--bisect-passes", "--dump", dump, "--check")
    outcome = invoke("compare", files.model, *options)
    assert outcome.code == 4, outcome
    assert "first over the tolerance: relu (Relu)" in outcome.out
    assert "made here" in outcome.out
    assert sorted(path.name for path in dump.iterdir()) == [
        "relu.expected.npz",
        "relu.inputs.npz",
        "relu.onnx",
    ]


def test_bad_options(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    missing = invoke("compare", files.model, "--inputs", tmp_path / "none.npz")
    assert missing.code == 4 and "cannot read inputs" in missing.err
    nowhere = invoke("compare", files.model, "--html", tmp_path / "no" / "page.html")
    assert nowhere.code == 4 and "choose another path" in nowhere.err
    assert invoke("compare", files.artifact).code == 4
