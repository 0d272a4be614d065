"""Code for other CPUs: it compiles here, and running it here is an error, never SIGILL."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_edge
from tvm_edge import ArtifactError, DeviceUnavailableError
from tvm_edge.hardware import resolve_target
from tvm_edge.host import host_features, machine

IMAGE = np.zeros((1, 3, 16, 16), "float32")


def lacking_cpu() -> dict[str, Any]:
    """A CPU of this architecture with features that this one lacks."""
    names = {
        "x86_64": ("znver4", "sapphirerapids", "diamondrapids"),
        "aarch64": ("neoverse-n1", "neoverse-v1", "neoverse-v2"),
    }
    for mcpu in names[machine()]:
        target = {"kind": "llvm", "mtriple": f"{machine()}-linux-gnu", "mcpu": mcpu}
        if resolve_target(target).features - (host_features() or frozenset()):
            return target
    pytest.skip("this CPU has every feature that LLVM knows of")


@pytest.fixture(scope="module")
def for_a_newer_cpu(small_model: onnx.ModelProto) -> tvm_edge.CompiledModel:
    """The small model for a CPU with more features than this one."""
    return tvm_edge.compile(small_model, lacking_cpu())


@pytest.fixture(scope="module")
def for_another_architecture(small_model: onnx.ModelProto) -> tvm_edge.CompiledModel:
    """The small model for a CPU of the other architecture."""
    if machine() == "aarch64":
        return tvm_edge.compile(small_model, {"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    return tvm_edge.compile(small_model, "arm/rk3399")


def test_a_newer_cpu_of_this_architecture(for_a_newer_cpu: tvm_edge.CompiledModel) -> None:
    assert for_a_newer_cpu.report.kernels
    for attempt in (
        lambda: for_a_newer_cpu.run({"data": IMAGE}),
        for_a_newer_cpu.warmup,
        for_a_newer_cpu.benchmark,
        for_a_newer_cpu.profile,
    ):
        with pytest.raises(DeviceUnavailableError, match="this CPU lacks") as caught:
            attempt()
        assert caught.value.exit_code == 5


def test_the_message_names_the_features(for_a_newer_cpu: tvm_edge.CompiledModel) -> None:
    missing = resolve_target(lacking_cpu()).features - (host_features() or frozenset())
    with pytest.raises(DeviceUnavailableError) as caught:
        for_a_newer_cpu.run({"data": IMAGE})
    assert all(feature in str(caught.value) for feature in missing)


def test_its_artifact_is_refused_too(
    for_a_newer_cpu: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    path = for_a_newer_cpu.export(tmp_path / "newer.tvme")
    with pytest.raises(DeviceUnavailableError, match="this CPU lacks"):
        tvm_edge.load(path)


def test_another_architecture(for_another_architecture: tvm_edge.CompiledModel) -> None:
    model = for_another_architecture
    assert model.report.kernels
    for attempt in (lambda: model.run({"data": IMAGE}), model.benchmark, model.profile):
        with pytest.raises(ArtifactError, match=machine()):
            attempt()


def test_exporting_for_another_architecture_names_its_compiler(
    for_another_architecture: tvm_edge.CompiledModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)  # installed by `make test-full`
    other = "x86-64" if machine() == "aarch64" else "aarch64"
    package = rf"apt-get install g\+\+-{other}-linux-gnu"
    with pytest.raises(tvm_edge.MissingDependencyError, match=package):
        for_another_architecture.export(tmp_path / "model.tvme")
    assert list(tmp_path.iterdir()) == []


ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
ANOTHERS_FEATURES = {"haswell": ("avx2", "avx512f"), "cortex-a76": ("dotprod", "sve")}


@pytest.mark.parametrize(
    ("architecture", "mcpu"), [("x86_64", "haswell"), ("aarch64", "cortex-a76")]
)
def test_a_named_cpu_compiles_and_exports_without_running(
    small_model: onnx.ModelProto, tmp_path: Path, architecture: str, mcpu: str
) -> None:
    """On whatever machine: code of that architecture, with what that CPU has and no more."""
    target = {"kind": "llvm", "mtriple": f"{architecture}-linux-gnu", "mcpu": mcpu}
    model = tvm_edge.compile(small_model, target)
    assert model.report.kernels
    assert mcpu in model.report.target
    if architecture != machine() and not shutil.which(f"{architecture}-linux-gnu-g++"):
        pytest.skip(f"no {architecture}-linux-gnu-g++ to link with: apt-get install it")
    path = model.export(tmp_path / "model.tvme")
    with zipfile.ZipFile(path) as archive:
        library = archive.read("library.so")
        manifest = json.loads(archive.read("manifest.json"))
    assert library[:4] == b"\x7fELF"
    assert int.from_bytes(library[18:20], "little") == ELF_MACHINES[architecture]
    assert manifest["target"]["architecture"] == architecture
    has, lacks = ANOTHERS_FEATURES[mcpu]
    assert has in manifest["target"]["features"]
    assert lacks not in manifest["target"]["features"]


@pytest.mark.skipif(machine() == "aarch64", reason="the board is of this architecture")
def test_a_board_with_a_gpu(small_model: onnx.ModelProto, tmp_path: Path) -> None:
    """Its CPU's code beside OpenCL C, in larger and in smaller work-groups; no device is here."""
    if not shutil.which("aarch64-linux-gnu-g++"):
        pytest.skip("no aarch64-linux-gnu-g++ to link with: apt-get install it")
    model = tvm_edge.compile(small_model, "mali-t860", fallback="none")
    assert {p.device for p in model.report.placements} == {"opencl"}
    path = model.export(tmp_path / "model.tvme")
    with zipfile.ZipFile(path) as archive:
        libraries = [archive.read(name) for name in ("library.so", "smaller.so")]
    for library in libraries:
        assert int.from_bytes(library[18:20], "little") == ELF_MACHINES["aarch64"]
        assert b"__kernel " in library
    with pytest.raises(ArtifactError, match="is compiled for aarch64, and this machine is x86_64"):
        tvm_edge.load(path)


def test_the_plan_for_another_cpu_needs_no_device(small_model: onnx.ModelProto) -> None:
    here = tvm_edge.analyze(small_model, "llvm")
    there = tvm_edge.analyze(small_model, lacking_cpu())
    operators = [kernel.operators for kernel in there.kernels]
    assert operators == [kernel.operators for kernel in here.kernels]
