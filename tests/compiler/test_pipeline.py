"""The compiler is one list of passes: printable, dumpable, cut short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tvm.relax import transform

import tvm_edge
from tests.compiler.steps import lowered
from tvm_edge.compiler.compilation import begin
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.passes import Pipeline, on_module
from tvm_edge.compiler.pipeline import PIPELINE

PHASES = (
    "quantize",
    "simplify",
    "place",
    "precision",
    "memory",
    "layout",
    "lower",
    "fuse",
    "instructions",
    "report",
)


def test_prints_its_passes_in_order() -> None:
    fuse = on_module("lower", transform.FuseOps()).when(lambda _: True, "always")
    pipeline = Pipeline((fuse, on_module("lower", transform.FuseTIR())))
    assert str(pipeline) == "lower        FuseOps  (always)\nlower        FuseTIR"


def test_every_pass_has_a_phase() -> None:
    assert {each.phase for each in PIPELINE.passes} == set(PHASES)
    assert len(str(PIPELINE).splitlines()) == len(PIPELINE.passes)


def test_parts_make_the_whole(small_model: onnx.ModelProto) -> None:
    """A list cut anywhere and continued decides the same."""
    begun = begin(small_model, "llvm", Options(parallel_fusion=False, fallback="none"))
    half = PIPELINE.part(until="ScheduleKernels").run(begun)
    whole = PIPELINE.part("ScheduleKernels").run(half)
    assert whole.report.kernels == lowered(small_model, "llvm").report.kernels


def test_dump_writes_the_module_after_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_model: onnx.ModelProto
) -> None:
    folder = tmp_path / "dump"
    monkeypatch.setenv("TVM_EDGE_DUMP", str(folder))
    tvm_edge.analyze(small_model, "llvm")
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "000-imported.py"
    monkeypatch.delenv("TVM_EDGE_DUMP")
    begun = begin(small_model, "llvm", Options())
    expected = [f"{each.phase}-{each.name}" for each, _ in PIPELINE.steps(begun)]
    assert [name[4:-3] for name in names[1:]] == expected
    assert "conv2d" in (folder / names[1]).read_text()


def test_no_dump_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_model: onnx.ModelProto
) -> None:
    monkeypatch.delenv("TVM_EDGE_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    tvm_edge.analyze(small_model, "llvm")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_each_pass_did(tmp_path: Path, small_model: onnx.ModelProto) -> None:
    onnx.save(small_model, tmp_path / "small.onnx")
    command = [sys.executable, "-m", "tvm_edge.compiler.pipeline", "small.onnx", "mali-t860"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = {line.split()[1]: line for line in said.stdout.splitlines()}
    assert "changed" in rows["LegalizeOps"] and "changed" not in rows["DispatchSortScan"]
    assert not said.stderr
