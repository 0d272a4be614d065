"""``precision="float16"`` and ``"mixed"``: options, refusals, the report, the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.cli.conftest import Invoke, invoke  # noqa: F401  a fixture
from tests.onnx_models import make_model
from tvm_edge.compiler import compilation
from tvm_edge.errors import InputError
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.report import CompileReport

HALVES = ("float16", "mixed")
MALI = {"target": "mali-t860", "host": "llvm"}
SILENT = {"kind": "opencl", "max_num_threads": 64}
"""Nobody says that it has float16."""
NEHALEM = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "nehalem"}


def classifier(largest: float = 1.0) -> onnx.ModelProto:
    """Two convolutions, a pool, a matrix and a softmax; 'conv1' has one weight of `largest`."""
    generator = np.random.default_rng(0)
    weights = {
        "w0": generator.standard_normal((16, 3, 3, 3)).astype("float32"),
        "w1": generator.standard_normal((32, 16, 3, 3)).astype("float32"),
        "w2": generator.standard_normal((10, 32)).astype("float32"),
    }
    weights["w1"][3, 2, 1, 0] = largest
    return make_model(
        [
            helper.make_node("Conv", ["x", "w0"], ["c0"], name="conv0"),
            helper.make_node("Relu", ["c0"], ["r0"], name="relu0"),
            helper.make_node("Conv", ["r0", "w1"], ["c1"], name="conv1"),
            helper.make_node("GlobalAveragePool", ["c1"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
            helper.make_node("Gemm", ["f", "w2"], ["g"], name="gemm", transB=1),
            helper.make_node("Softmax", ["g"], ["y"], name="softmax", axis=1),
        ],
        {"x": (1, 3, 12, 12)},
        ["y"],
        weights,
    )


def compiled(model: onnx.ModelProto | None = None, **options: Any) -> tvm_edge.CompiledModel:
    return tvm_edge.compile(model or classifier(), **{**MALI, "precision": "mixed", **options})


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("target", "precision"),
    [(NEHALEM, "float16"), (NEHALEM, "mixed"), (SILENT, "float16")],
    ids=str,
)
def test_devices_without_float16_are_refused(target: Any, precision: str) -> None:
    """A CPU without F16C, and an OpenCL device of which nobody says that it has float16."""
    with pytest.raises(InputError) as caught:
        tvm_edge.compile("/no/such/model.onnx", target, precision=precision)
    assert caught.value.name == "precision" and caught.value.got == repr(precision)
    message = str(caught.value)
    assert resolve_target(target).spec.name in message
    assert "leave precision at 'float32'" in message


def test_this_machines_device_is_asked(gpu: str) -> None:
    """Debian's pocl and NVIDIA's OpenCL have no cl_khr_fp16, others do."""
    if resolve_target(gpu).spec.float16:
        assert tvm_edge.compile(classifier(), gpu, precision="mixed").report.precision is not None
        return
    with pytest.raises(InputError, match="calculates in float16") as caught:
        tvm_edge.compile(classifier(), gpu, precision="float16")
    assert resolve_target(gpu).spec.name in str(caught.value)
    assert "cl_khr_fp16" in str(caught.value) and "tvm-edge devices" in str(caught.value)


def test_the_device_decides_and_not_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(target: Any, host: Any = None) -> ResolvedTarget:
        resolved = resolve_target(target, host)
        return replace(resolved, spec=replace(resolved.spec, float16=False))

    assert compiled().report.precision is not None
    monkeypatch.setattr(compilation, "resolve_target", resolve)
    with pytest.raises(InputError, match=r"Mali-T860.*precision='mixed', which stays float32"):
        compiled(precision="float16")
    with pytest.warns(tvm_edge.TvmEdgeWarning, match="stay float32: .*Mali-T860 MP4 does not"):
        report = compiled().report
    assert report.precision is not None and not report.precision.stores_float16
    assert report.precision.reasons["conv0"].endswith("does not calculate in float16")
    assert any("does not calculate in float16" in warning for warning in report.warnings)


def test_unknown_exceptions_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'conv1' or 'conv0'") as caught:
        compiled(precision_exceptions=["conv11"])
    assert caught.value.name == "precision_exceptions"


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_exceptions_of_what_is_float32_anyway_are_refused(precision: str) -> None:
    with pytest.raises(InputError, match=f"with precision='{precision}' all does"):
        compiled(precision=precision, precision_exceptions=["Conv"])


# ------------------------------------------------------------------------------------- the report


@pytest.mark.parametrize("precision", HALVES)
def test_the_report_says_what_runs_in_which_type(precision: str) -> None:
    found = compiled(precision=precision).report.precision
    assert found is not None
    assert found.mode == precision
    halves = {name for name, dtype in found.operators.items() if dtype == "float16"}
    assert halves == {"conv0", "relu0", "conv1", "pool", "flatten", "gemm"}
    assert found.operators["softmax"] == "float32"
    assert found.casts == 2 and not found.reasons


def test_weights_take_half_of_their_bytes() -> None:
    report = compiled().report
    assert report.precision is not None and report.memory is not None
    weights = 4 * (16 * 27 + 32 * 16 * 9 + 320)
    assert report.precision.weight_bytes_before == weights
    assert report.precision.weight_bytes == weights // 2
    assert report.memory.weights == weights // 2


def test_activations_take_half_of_their_bytes() -> None:
    halved, whole = compiled().report.memory, compiled(precision="float32").report.memory
    assert halved is not None and whole is not None
    assert halved.activations < 0.6 * whole.activations


def test_float32_has_no_such_section() -> None:
    assert compiled(precision="float32").report.precision is None


def test_a_constant_out_of_range_is_warned_of() -> None:
    with pytest.warns(tvm_edge.TvmEdgeWarning, match=r"conv1 \(Conv\) stays float32.*1e\+06"):
        report = compiled(classifier(largest=1e6)).report
    assert report.precision is not None
    assert report.precision.operators["conv1"] == "float32"
    assert report.precision.operators["conv0"] == "float16"
    assert "65504" in report.precision.reasons["conv1"]
    assert any("conv1" in warning for warning in report.warnings)


@pytest.mark.parametrize("names", [["conv1"], ["Conv"], ["Gemm", "conv0"]], ids=str)
def test_exceptions_stay_float32(names: list[str]) -> None:
    found = compiled(precision_exceptions=names).report.precision
    assert found is not None
    kinds = {node.name: node.op_type for node in classifier().graph.node}
    for name, kind in kinds.items():
        if name in names or kind in names:
            assert found.operators[name] == "float32"
            assert found.reasons[name] == "named in precision_exceptions"
        elif kind in ("Conv", "Gemm"):
            assert found.operators[name] == "float16"


def test_the_report_survives_export(tmp_path: Path) -> None:
    report = compiled(precision_exceptions=["conv0"]).report
    stored = json.loads(json.dumps(report.to_dict()))
    assert CompileReport.from_dict(stored) == report
    del stored["precision"]  # of an artifact of an earlier version
    assert CompileReport.from_dict(stored).precision is None


def test_the_summary_has_a_line_of_it() -> None:
    assert "precision  mixed: 6 of 7 operators on float16, 2 conversions" in (
        compiled().report.summary()
    )


def test_every_kernel_belongs_to_an_operator() -> None:
    """Conversions too: they are fused with the operators that make, or first read, a tensor."""
    report = compiled().report
    assert all(kernel.operators for kernel in report.kernels)
    assert {o for k in report.kernels for o in k.operators} >= {"conv0", "conv1", "gemm"}


# ------------------------------------------------------------------------------- the command line


def test_the_command_line(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "classifier.onnx"
    onnx.save(classifier(), path)
    command = ("compile", path, "--target", "mali-t860", "--host", "llvm")
    command += ("-o", tmp_path / "x.tvme", "--precision", "mixed")
    outcome = invoke(*command, "--keep-float32", "conv1", "--keep-float32", "Gemm", "--json")
    assert outcome.code == 0
    found = outcome.data["report"]["precision"]
    kept = {name for name, reason in found["reasons"].items() if "named" in reason}
    assert kept == {"conv1", "gemm"}
    assert "mixed: 3 of 7 operators on float16" in invoke(*command, "--keep-float32", "Gemm").out
    outcome = invoke(*command, "--keep-float32", "Cnov")
    assert outcome.code == 4 and "did you mean" in outcome.err
