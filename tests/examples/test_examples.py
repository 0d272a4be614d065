"""The examples run as a user runs them, and say what they are there to show."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from PIL import Image

from tests.marks import in_full
from tests.runtime.support import ROOT, run_child
from tvm_edge.zoo import shapes

NO_OPENCL = {"TVM_EDGE_OPENCL_LIBRARY": "/no/such/library.so"}
SAMPLE = {shapes.CLASSES[i] for i in shapes.draw(0).classes}
"""What is in the picture that the examples look at."""


def run(name: str, *arguments: object, environment: dict[str, str] | None = None) -> str:
    command = [str(ROOT / "examples" / f"{name}.py"), *map(str, arguments)]
    settings = {"TVM_NUM_THREADS": "2", **(environment or {})}
    done = run_child(command, environment=settings, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compile_and_run() -> None:
    output = run("compile_and_run")
    found = {line.split()[0] for line in output.splitlines() if " pixels" in line}
    assert found == SAMPLE
    assert "input  image float32 (1, 3, 128, 128)" in output
    assert "placement  llvm" in output and "GFLOP/s" in output


def test_heterogeneous(on_opencl: None) -> None:
    output = run("heterogeneous")
    whole, split = (line for line in output.splitlines() if "partition" in line)
    assert "1 partition, 0 copies" in whole and "CPU" not in whole
    assert "3 partitions" in split and split.endswith("CPU: NonMaxSuppression ×1")
    assert "postprocess/nms: named in fallback=" in output
    assert "opencl to llvm" in output and "llvm to opencl" in output
    assert all(name in output.splitlines()[-1] for name in SAMPLE)


def test_heterogeneous_without_opencl() -> None:
    output = run("heterogeneous", environment=NO_OPENCL)
    assert output.startswith("no OpenCL device") and "found" not in output


def test_deploy_without_compiler() -> None:
    output = run("deploy_without_compiler")
    assert "compiler loaded: none" in output
    assert output.rstrip().endswith("boxes, equal")


# Beside an OpenCL device the same is done once more, of the network that `heterogeneous` compiles.
@pytest.mark.parametrize("alone", [True, *in_full(False)])
def test_demo(alone: bool, tmp_path: Path) -> None:
    """On all that this machine has, or on its CPU alone."""
    output = run("demo", "--output", tmp_path, environment=NO_OPENCL if alone else None)
    assert "placement  llvm" in output and "latency    median" in output
    picture_0 = next(line for line in output.splitlines() if "picture 0:" in line)
    assert all(name in picture_0 for name in SAMPLE)
    with Image.open(tmp_path / "detections.png") as sheet:
        assert sheet.size == (4 * 384, 2 * 384)
    assert "shapes_ssd" in (tmp_path / "report-llvm.html").read_text(encoding="utf-8")
    if alone or not tvm.runtime.enabled("opencl") or not tvm.opencl(0).exist:
        assert "no OpenCL device" in output
    else:
        assert "placement  opencl" in output
        assert "llvm and opencl find the same objects" in output
        assert (tmp_path / "report-opencl.html").exists()
