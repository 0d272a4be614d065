"""A trained detector finds as much after compilation as before: mean average precision.

ONNX Runtime, which knows neither our placements nor fusion, Winograd's algorithm or memory plans,
is the reference. In float32 nothing but rounding may differ, and 0.001 of mAP is about the weight
of one detection that falls at a threshold; lower precisions may cost half a point.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import session
from tests.opencl.support import child_environment
from tests.schedules.gpu.intel_runtime import HOW_TO_GET_ONE, intel_environment
from tvm_edge.hardware import resolve_target
from tvm_edge.zoo import shapes
from tvm_edge.zoo.average_precision import Detections, mean_average_precision
from tvm_edge.zoo.trained import model_path

NETWORK = "zoo:shapes_ssd"
PICTURES = 100
LEAST = 0.85
ROUNDING, HALF_A_POINT = 0.001, 0.005

_CHILD = "TVM_EDGE_TEST_DETECTOR_CHILD"

Run = Callable[[dict[str, np.ndarray]], dict[str, Any]]


@pytest.fixture(scope="session")
def scenes() -> list[shapes.Scene]:
    """Pictures that the network was not trained on."""
    return [shapes.draw(index, "held-out") for index in range(PICTURES)]


@pytest.fixture(scope="session")
def expected(scenes: list[shapes.Scene]) -> list[Detections]:
    """Detections of ONNX Runtime in the scenes."""
    opened = session(Path(model_path("shapes_ssd")))
    names = [output.name for output in opened.get_outputs()]
    return found(lambda feeds: dict(zip(names, opened.run(names, feeds), strict=True)), scenes)


@pytest.fixture(scope="session")
def on_the_cpu(scenes: list[shapes.Scene]) -> tuple[tvm_edge.CompiledModel, list[Detections]]:
    """The detector compiled for this machine's CPU, and what it finds."""
    model = tvm_edge.compile(NETWORK, "llvm")
    return model, found(model.run, scenes)


def found(run: Run, scenes: Sequence[shapes.Scene]) -> list[Detections]:
    """Detections of each picture."""
    each = [run({"image": shapes.network_input(scene)}) for scene in scenes]
    return [(outputs["boxes"], outputs["scores"], outputs["classes"]) for outputs in each]


def accuracy(detections: Sequence[Detections], scenes: Sequence[shapes.Scene]) -> float:
    """The mAP at an IoU of 0.5."""
    return mean_average_precision(detections, [(scene.boxes, scene.classes) for scene in scenes])


def test_it_is_a_good_detector(expected: list[Detections], scenes: list[shapes.Scene]) -> None:
    assert accuracy(expected, scenes) >= LEAST


def test_on_the_cpu(
    on_the_cpu: tuple[tvm_edge.CompiledModel, list[Detections]],
    expected: list[Detections],
    scenes: list[shapes.Scene],
) -> None:
    """With blocked layouts, fusion and Winograd's algorithm."""
    model, detections = on_the_cpu
    assert accuracy(detections, scenes) == pytest.approx(accuracy(expected, scenes), abs=ROUNDING)
    report = model.report
    assert any("Winograd" in layout for layout in report.layouts.values())
    assert len(report.kernels) < 0.75 * len(report.placements)  # activations are fused
    assert report.memory is not None
    # Lives are planned: the maps of the network are not all kept at once.
    results = sum(operator.output_bytes or 0 for operator in report.operators)
    assert report.memory.activations < 0.5 * results


# In `make test` examples/heterogeneous.py runs it both ways, and compares the boxes of a picture.
@pytest.mark.parametrize("suppression", in_full("gpu", "cpu"))
def test_on_a_gpu(
    gpu: str,
    suppression: str,
    on_the_cpu: tuple[tvm_edge.CompiledModel, list[Detections]],
    expected: list[Detections],
    scenes: list[shapes.Scene],
) -> None:
    """All of it there, or the suppression of boxes on the CPU."""
    fallback = "none" if suppression == "gpu" else ["NonMaxSuppression"]
    model = tvm_edge.compile(NETWORK, gpu, fallback=fallback)
    where = {p.op_type: p.device for p in model.report.placements if p.device}
    assert where.pop("NonMaxSuppression") == (gpu if suppression == "gpu" else "llvm")
    assert set(where.values()) == {gpu}
    rules = {kernel.rule for kernel in model.report.kernels}
    winograd = any("Winograd" in layout for layout in model.report.layouts.values())
    assert winograd or "tiled" in rules, "convolutions are fast ones"
    value = accuracy(found(model.run, scenes), scenes)
    for others in (expected, on_the_cpu[1]):
        assert value == pytest.approx(accuracy(others, scenes), abs=ROUNDING)


@pytest.mark.parametrize("precision", ["float16", *in_full("mixed")])
def test_in_float16_on_the_cpu(
    precision: str, expected: list[Detections], scenes: list[shapes.Scene]
) -> None:
    if not resolve_target("llvm").spec.float16_vectors:
        pytest.skip("this CPU does not convert vectors of float16")
    model = tvm_edge.compile(NETWORK, "llvm", precision=precision)
    assert model.report.precision is not None and model.report.precision.stores_float16
    value = accuracy(found(model.run, scenes), scenes)
    assert value == pytest.approx(accuracy(expected, scenes), abs=HALF_A_POINT)


@pytest.mark.parametrize("precision", ["mixed", *in_full("float16")])
def test_in_float16(
    gpu: str, precision: str, expected: list[Detections], scenes: list[shapes.Scene]
) -> None:
    if not resolve_target(gpu).spec.float16:
        pytest.skip(f"{resolve_target(gpu).spec.name} has no float16")
    model = tvm_edge.compile(NETWORK, gpu, precision=precision, fallback="none")
    assert {p.device for p in model.report.placements} <= {gpu, ""}
    value = accuracy(found(model.run, scenes), scenes)
    assert value == pytest.approx(accuracy(expected, scenes), abs=HALF_A_POINT)


@pytest.mark.parametrize("marked", ["not full", *in_full("full")])
@pytest.mark.skipif(_CHILD in os.environ, reason="this is that process")
def test_in_float16_on_intels_runtime(tmp_path: Path, marked: str) -> None:
    """A CPU with float16: pocl's has none (see tests/schedules/gpu/test_float16.py)."""
    changes = intel_environment(tmp_path)
    if changes is None:
        pytest.skip(f"no float16 on a CPU: {HOW_TO_GET_ONE}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", "test_in_float16 and opencl", "-m", marked],
        env=child_environment({**changes, _CHILD: "1"}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) == 1 and "skipped" not in done.stdout, done.stdout
