"""CPUs of boards by name, and the instructions that code for them may use."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tvm_edge
from benchmarks.arm_mca.cores import CORES
from tests.hardware.refusals import refused
from tvm_edge import host
from tvm_edge.hardware import resolve_target
from tvm_edge.hardware.boards import BOARDS
from tvm_edge.hardware.presets import PRESETS

EXTENSIONS = {"fullfp16", "dotprod", "i8mm", "bf16"}
# Linux's words for what the cores of these boards have, of those that we read.
CPUINFO = {
    "raspberry-pi-3": "fp asimd evtstrm crc32 cpuid",
    "raspberry-pi-4": "fp asimd evtstrm crc32 cpuid",
    "raspberry-pi-5": "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid "
    "asimdrdm lrcpc dcpop asimddp",
}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_a_cpu_with_its_figures(name: str) -> None:
    board, resolved = BOARDS[name], resolve_target(name)
    spec = resolved.spec
    assert resolved.kind == "llvm" and resolved.host is None
    assert resolved.architecture == "aarch64"
    assert (spec.kind, spec.simd_bytes, spec.cores) == ("cpu", 16, board.cores)
    assert (spec.name, spec.peak_gflops, spec.bandwidth_gbs) == (
        *(board.name, board.gflops),
        board.bandwidth,
    )
    # Multiply-adds of four numbers: what is simulated without a board is by the same.
    per_cycle = 2 * CORES[board.mcpu].most("float32")
    assert 0.8 < spec.peak_gflops / spec.cores / per_cycle < 3  # GHz
    assert spec.l1_cache <= spec.l2_cache


@pytest.mark.parametrize("name", BOARDS)
def test_code_uses_what_the_cores_have(name: str) -> None:
    newer = BOARDS[name].mcpu not in ("cortex-a53", "cortex-a72")
    expected = {"fullfp16", "dotprod"} if newer else set()
    assert resolve_target(name).features & EXTENSIONS == expected
    assert resolve_target(name).spec.dot_product == ("sdot" if newer else "smull")


@pytest.mark.parametrize("gpu", ["jetson-orin-nano", "jetson-agx-orin"])
def test_a_jetson_cpu_is_the_one_beside_the_gpu(gpu: str) -> None:
    board, preset = BOARDS[f"{gpu}-cpu"], PRESETS[gpu]
    assert board.gflops == preset.host_gflops
    assert preset.host is not None and board.cores == preset.host["num-cores"]
    assert board.bandwidth == preset.spec.bandwidth_gbs


def test_a_board_is_a_host() -> None:
    assert resolve_target("mali-g76", "rk3588").cpu.spec.name == "Rockchip RK3588"


@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_a_feature_is_asked_for_by_the_artifact(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader compares the list of the target with the words of the board's Linux."""
    target = {**BOARDS["raspberry-pi-3"].config, "mattr": [f"+{extension}"]}
    asked = resolve_target(target).features
    monkeypatch.setattr(host, "machine", lambda: "aarch64")
    lacking = {}
    for name, words in CPUINFO.items():
        path = tmp_path / name
        path.write_text(f"processor\t: 0\nFeatures\t: {words}\n")
        lacking[name] = asked - (host.host_features(str(path)) or frozenset())
    assert lacking["raspberry-pi-3"] == {extension}
    newer = {"fullfp16", "dotprod"}
    assert lacking["raspberry-pi-5"] == ({extension} - newer)


def test_code_for_a_board_runs_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine", lambda: "aarch64")
    for name, words in CPUINFO.items():
        path = tmp_path / name
        path.write_text(f"processor\t: 0\nFeatures\t: {words}\n")
        assert resolve_target(name).features <= (host.host_features(str(path)) or frozenset())


def test_the_report_names_the_board(small_model: onnx.ModelProto) -> None:
    report = tvm_edge.analyze(small_model, "raspberry-pi-5")
    assert "Raspberry Pi 5" in report.target


def test_names_of_compilers_are_translated() -> None:
    board = BOARDS["raspberry-pi-5"].config
    refused({**board, "mattr": ["+fp16"]}, "it calls that '+fullfp16'")
    refused("raspberry-pi-6", "raspberry-pi-5")
