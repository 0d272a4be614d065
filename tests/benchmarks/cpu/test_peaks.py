"""Peaks by type: what the CPU has is measured, what it lacks is left out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.cpu import peaks
from tvm_edge.host import host_features


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_types_that_the_cpu_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_FMA_TRIALS", 1)
    here = host_features() or frozenset()
    found = peaks.measure_types(peaks.build_peaks(tmp_path), 1)
    assert (found["half_gflops"] > 0) == bool(here & {"f16c", "neon"})
    assert (found["bf16_gflops"] > 0) == bool(here & {"avx512bf16", "bf16"})


def test_a_program_that_fails_is_no_missing_instruction(tmp_path: Path) -> None:
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        peaks.measure_types(program, 1)
