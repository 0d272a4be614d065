"""Open dimensions beside fixed ones: what is measured, what is refused, which bars are met."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.models import dynamic, dynamic_tables
from benchmarks.models.dynamic_cases import CASES
from benchmarks.models.dynamic_files import write_model
from benchmarks.models.dynamic_jobs import OPEN, RUNTIMES, steady_inputs
from benchmarks.models.dynamic_random import agrees_at_random_shapes
from tvm_edge.report.dims import parse_dim


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_in_the_ranges_and_the_first_is_typical(name: str) -> None:
    case = CASES[name]
    dims = [parse_dim(dim) for dim in case.dims if isinstance(dim, str)]
    assert tuple(dim.typical for dim in dims) == tuple(case.lengths[0])
    assert len(set(case.lengths)) == len(case.lengths) == 8
    for lengths in case.lengths:
        refused = [d.refusal(n) for d, n in zip(dims, lengths, strict=True)]
        assert not any(refused), refused
    # Away from the typical shape in every dimension, and further than twice.
    for axis, typical in enumerate(case.lengths[0]):
        others = {lengths[axis] / typical for lengths in case.lengths}
        assert len(others) > 2 and (max(others) >= 2 or min(others) <= 0.5)


def test_a_written_model_runs_at_every_shape(tmp_path: Path) -> None:
    path = write_model("lstm_ocr", tmp_path, tmp_path)
    run, case = onnxruntime_function(path), CASES["lstm_ocr"]
    for number in (3, 5):
        batch, width = case.lengths[number]
        text = run({case.input: np.zeros(case.shape(number), np.float32)})["text"]
        assert text.shape == (width // 4 + 1, batch, 37)


def test_a_network_of_the_zoo_runs_at_every_shape(tmp_path: Path) -> None:
    path = write_model("mobilenet_v2", tmp_path, tmp_path)
    model = onnx.load(path)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["n", 3, "h", "w"]
    case = CASES["mobilenet_v2"]
    logits = onnxruntime_function(path)({case.input: np.zeros(case.shape(6), np.float32)})
    assert logits["logits"].shape == (7, 1000)


@pytest.mark.parametrize(
    ("noise", "seed"), [([1e-6, 1e-5, 0, 0, 0], 3), ([1e-4, 1e-6, 0, 0, 0], 103),
                        ([9e-4, 3e-4, 1e-4, 2e-4, 3e-4], 203)],
    ids=["steady", "near a tie", "none steady"],
)  # fmt: skip
def test_inputs_are_those_that_rounding_moves_little(noise: list[float], seed: int) -> None:
    def make(seed: int) -> dict[str, np.ndarray]:
        return {"x": np.full(4, seed, np.float64)}

    def plain(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": inputs["x"] * (1 + noise[int(inputs["x"][0]) // 100])}

    inputs, expected, found = steady_inputs(make, lambda inputs: dict(inputs), plain, 3)
    assert inputs["x"][0] == expected["x"][0] == seed
    assert found == pytest.approx(noise[seed // 100])


# ------------------------------------------------------------------ tables


def _answer(ms: float, **other: Any) -> dict[str, Any]:
    return {"ms": ms, "first_ms": 9.0, "second_ms": 2.0, "error": 1e-6, "right": True, **other}


def _row(name: str, open_ms: list[float], fixed_ms: float, **other: Any) -> dict[str, Any]:
    """A case of two shapes, of as many rounds as there are times of the open artifact."""
    answers = {
        OPEN: [_answer(ms) for ms in open_ms],
        "fixed": [_answer(fixed_ms)] * len(open_ms),
        "onnxruntime": [_answer(8.0)] * len(open_ms),
        "openvino": [_answer(4.0)] * len(open_ms),
    }
    made = {"compile_seconds": 10.0, "artifact_bytes": 2**21, "kernels": 3}
    return {
        "case": name,
        "runtimes": list(RUNTIMES),
        "numbers": [0, 1],
        "compiled": {OPEN: {**made, "compile_seconds": 15.0}, "0": made, "1": made},
        "shapes": {"0": answers, "1": answers},
        **other,
    }


def test_figures_are_of_the_medians_of_the_rounds() -> None:
    rows = [_row("lstm_ocr", [2.0, 2.2, 9.0], 2.0), _row("yolov8n", [4.0, 4.0, 4.0], 2.0)]
    figures = dynamic_tables.summarise(rows)
    assert figures["lstm_ocr"]["slower"] == pytest.approx(1.1)
    assert figures["yolov8n"]["slowest"] == pytest.approx(2.0)
    every = figures["all"]
    assert every["slower"] == pytest.approx((1.1 * 2) ** 0.5)
    assert every["slowest_at"].startswith("yolov8n")
    assert every["peer"] == pytest.approx((4 / 2.2 * 1) ** 0.5), "of the faster peer"
    assert every["first_ms"] == pytest.approx(7.0)
    assert (every["compile"], every["size"]) == (1.5, 1.0)
    assert (every["right"], every["shapes"], every["problems"]) == (4, 4, [])


def test_the_typical_shape_is_seen_at_the_load() -> None:
    row = _row("lstm_ocr", [2.0], 2.0)
    del row["shapes"]["1"]
    assert "first_ms" not in dynamic_tables.summarise([row])["all"]


def test_bars_are_met_or_missed() -> None:
    met = dynamic_tables.verdict([_row("lstm_ocr", [2.2], 2.0)], "llvm")
    assert met.count("**met**") == 6 and met.count("**missed**") == 1
    assert 'ms more": **missed**' in met and "Refused or wrong: none" in met
    slow = dynamic_tables.verdict([_row("lstm_ocr", [4.0], 2.0)], "opencl")
    for bar in ("in geometric mean", "at worst"):
        assert f'open / fixed <= 1.{"15" if "mean" in bar else "35"} {bar}": **missed**' in slow
    assert "First run of a shape, ms more than the second: 7.00" in slow


def test_a_round_that_failed_counts_for_no_ratio_and_is_told() -> None:
    row = _row("lstm_ocr", [2.2, 2.2], 2.0)
    row["shapes"]["1"] = {
        **row["shapes"]["1"],
        OPEN: [_answer(2.2), {"failed": "RuntimeError: no room | at all"}],
        "fixed": [_answer(2.0, right=False, error=1.0, detail="text: far away")] * 2,
    }
    every = dynamic_tables.summarise([row])["all"]
    assert every["slower"] == pytest.approx(1.1) and every["right"] == 1
    assert any("by open: RuntimeError" in problem for problem in every["problems"])
    assert any("by fixed: wrong, text: far away" in problem for problem in every["problems"])
    table = dynamic_tables.markdown(row).splitlines()
    assert "no room / at all" in table[5] and table[5].count("|") == table[4].count("|")


def test_a_refused_case_is_no_verdict_on_all() -> None:
    refused = {**_row("yolov8n", [], 1.0), "shapes": {}, "compiled": {}, "failed": "compile: no"}
    text = dynamic_tables.verdict([_row("lstm_ocr", [2.0], 2.0), refused], "llvm")
    assert "**missed**, 2 of 4 shapes" in text and "**met** by those measured" in text
    assert "yolov8n: compile: no" in text
    assert "**refused**, compile: no" in dynamic_tables.markdown(refused)


# ------------------------------------------------------------------ the parent


class _Turns:
    """Stands for a process: OpenVINO ends at shape 3, and cannot load for `lstm_ocr`."""

    def __init__(self, _: str, *arguments: Any, **__: Any) -> None:
        _, self._runtime, self._case, *_ = arguments
        self.is_alive = True
        fails = (self._runtime, self._case) == ("openvino", "lstm_ocr")
        self.loaded: dict[str, Any] = {"failed": "no"} if fails else {}

    def ask(self, number: int) -> dict[str, Any]:
        if not self.is_alive:
            return {"failed": "it has ended"}
        if self._runtime == "openvino" and number == 3:
            self.is_alive = False
            return {"failed": "exit status -11: no message"}
        return _answer(2.0)

    def end(self) -> None:
        self.is_alive = False


def _child(_seconds: float, _module: str, job: str, name: str, *arguments: Any) -> dict[str, Any]:
    if job == "compile" and name == "yolov8n" and arguments[0] == OPEN:
        return {"failed": "UnsupportedOperatorError: Range"}
    if job == "compile" and arguments[0] == "5":
        return {"failed": "CompilationError: odd"}
    return {"compile_seconds": 1.0, "artifact_bytes": 1000, "kernels": 1}


@pytest.fixture
def measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str, Path]:
    """Run three cases; return their results, the output, and the file."""
    monkeypatch.setattr(dynamic, "run_child_within", _child)
    monkeypatch.setattr(dynamic, "TurnProcess", _Turns)
    path = tmp_path / "found.json"
    cases = ["--cases", "yolov8n", "mobilenet_v2", "lstm_ocr"]
    dynamic.main([*cases, "--quick", "--folder", str(tmp_path), "--json", str(path)])
    content = json.loads(path.read_text())
    return {row["case"]: row for row in content["rows"]}, capsys.readouterr().out, path


def test_a_case_that_fails_does_not_end_the_others(measured) -> None:
    rows, printed, _ = measured
    assert rows["yolov8n"]["failed"] == "compile: UnsupportedOperatorError: Range"
    shapes = rows["mobilenet_v2"]["shapes"]
    assert list(shapes) == ["0", "3", "5"], "--quick"
    assert shapes["3"]["openvino"] == [{"failed": "exit status -11: no message"}]
    assert shapes["5"]["openvino"][0]["ms"] == 2.0, "by a new process"
    assert shapes["5"]["fixed"] == [{"failed": "compile: CompilationError: odd"}]
    assert rows["lstm_ocr"]["shapes"]["0"]["openvino"] == [{"failed": "load: no"}]
    assert "**yolov8n**" in printed and '"right everywhere": **missed**, 6 of 9' in printed


def test_peers_alone_need_no_compilation(tmp_path: Path, monkeypatch, capsys) -> None:
    def child(_seconds: float, _module: str, job: str, *_: Any) -> dict[str, Any]:
        assert job != "compile"
        return {}

    monkeypatch.setattr(dynamic, "run_child_within", child)
    monkeypatch.setattr(dynamic, "TurnProcess", _Turns)
    options = ["--cases", "mobilenet_v2", "--shapes", "0", "1", "--folder", str(tmp_path)]
    dynamic.main([*options, "--rounds", "2", "--runtimes", "onnxruntime", "openvino"])
    assert "| 4x3x224x224 | 2 [2–2] | 2 [2–2] | – |" in capsys.readouterr().out


def test_files_of_several_runs_are_printed_as_one(measured, capsys) -> None:
    _, printed, path = measured
    dynamic.main(["--from", str(path), str(path)])
    assert printed.endswith(capsys.readouterr().out)


@pytest.mark.parametrize(("target", "peers"), [("llvm", True), ("cuda", False)])
def test_peers_are_beside_the_cpu_alone(target: str, peers: bool) -> None:
    runtimes = dynamic._options(["--target", target]).runtimes
    assert ("onnxruntime" in runtimes) == peers and runtimes[:2] == [OPEN, "fixed"]


def test_fixed_artifacts_are_kept_with_what_they_took(tmp_path: Path, monkeypatch) -> None:
    asked: list[str] = []

    def child(_s: float, _m: str, job: str, name: str, shape: str, *rest: Any) -> dict[str, Any]:
        asked.append(shape)
        (rest[-1] / dynamic.artifact_name(name, shape)).write_text("artifact")
        return {"compile_seconds": 7.0}

    monkeypatch.setattr(dynamic, "run_child_within", child)
    options = dynamic._options(["--shapes", "0", "2", "--fixed", str(tmp_path / "kept")])
    for scratch in (tmp_path / "one", tmp_path / "two"):
        scratch.mkdir()
        found = dynamic._compile("lstm_ocr", options, scratch)
        assert found["2"] == {"compile_seconds": 7.0}
        assert (scratch / dynamic.artifact_name("lstm_ocr", "2")).read_text() == "artifact"
    assert asked == [OPEN, "0", "2", OPEN]


@pytest.mark.parametrize("wrong_above", [None, 100])
def test_random_shapes_are_in_the_ranges_and_the_smallest_wrong_one_is_named(
    wrong_above: int | None,
) -> None:
    case = CASES["ppocr_v4_rec"]
    seen: list[tuple[int, ...]] = []

    def make(_seed: int, shape: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
        seen.append(shape)
        return {"x": np.ones(shape, "float32")}, {"y": np.ones(4, "float32")}

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        wrong = wrong_above is not None and inputs["x"].shape[3] > wrong_above
        return {"y": np.full(4, 2 if wrong else 1, "float32")}

    found = agrees_at_random_shapes(case, run, make, 30)
    assert all(1 <= n <= 32 and (c, h) == (3, 48) and 32 <= w <= 2048 for n, c, h, w in seen)
    assert found["wrong"] == (None if wrong_above is None else (1, 3, 48, 101))
    assert found["shapes"] == len(seen) >= 10
