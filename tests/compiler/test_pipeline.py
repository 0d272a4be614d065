"""Pipelines are data: printable, dumpable."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tvm.relax import transform

import tvm_edge
from tvm_edge.compiler import phases
from tvm_edge.compiler.pipeline import Pipeline
from tvm_edge.hardware import resolve_target


def test_prints_its_passes_in_order() -> None:
    pipeline = Pipeline("demo", (transform.FuseOps(), transform.FuseTIR()))
    assert str(pipeline) == "demo\n  1. FuseOps\n  2. FuseTIR"


def test_every_phase_names_its_passes() -> None:
    legalize = phases.legalize(resolve_target("llvm"))
    for phase in (phases.SIMPLIFY, legalize, phases.GROUP, phases.FUSE, phases.lower()):
        assert len(str(phase).splitlines()) == len(phase.passes) + 1


def test_dump_writes_the_module_after_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_model: onnx.ModelProto
) -> None:
    folder = tmp_path / "dump"
    monkeypatch.setenv("TVM_EDGE_DUMP", str(folder))
    tvm_edge.analyze(small_model, "llvm")
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "000-imported.py"
    expected = [
        f"{phase.name}-{i:02d}-{name}"
        for phase in (
            phases.quantize(resolve_target("llvm").spec),
            phases.SIMPLIFY,
            phases.layout(resolve_target("llvm").spec),
            phases.legalize(resolve_target("llvm")),
            phases.GROUP,
            phases.FUSE,
        )
        for i, name in enumerate(phase.pass_names(), 1)
    ]
    assert [n[4:-3] for n in names[1 : len(expected) + 1]] == expected
    assert "conv2d" in (folder / names[1]).read_text()
    assert any("scheduled" in name for name in names)


def test_no_dump_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_model: onnx.ModelProto
) -> None:
    monkeypatch.delenv("TVM_EDGE_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    tvm_edge.analyze(small_model, "llvm")
    assert list(tmp_path.iterdir()) == []
