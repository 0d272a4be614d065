"""GPUs as targets: presets, TVM's tags, plain names, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import tvm

from tvm_edge import InputError
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.hardware.kinds import GpuKind
from tvm_edge.hardware.kinds.cuda import CudaKind
from tvm_edge.hardware.presets import GENERIC_CUDA, GENERIC_OPENCL, PRESETS
from tvm_edge.hardware.tensor_cores import AMPERE, TURING
from tvm_edge.host import machine


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr(GpuKind, "probe", lambda kind, index=0: None)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_gpu_with_its_host(name: str) -> None:
    preset, resolved = PRESETS[name], resolve_target(name)
    assert resolved.kind == preset.api
    assert resolved.spec == preset.spec
    assert resolved.spec.kind == "gpu"
    assert resolved.cpu.spec.kind == "cpu"
    assert str(resolved.target.host) == str(resolved.cpu.target)
    expected = machine() if preset.host is None else preset.host["mtriple"].split("-")[0]
    assert resolved.architecture == expected


@pytest.mark.parametrize("name", PRESETS)
def test_the_figures_of_a_preset_fit_together(name: str) -> None:
    spec = PRESETS[name].spec
    vendor, _, device = spec.key.partition("/")
    assert vendor in ("arm", "intel", "nvidia", "qualcomm") and device
    assert spec.alus and spec.registers and spec.local_memory
    clock_ghz = spec.peak_gflops / (2 * spec.cores * spec.alus)
    assert 0.3 < clock_ghz < 2.0
    assert spec.bandwidth_gbs < spec.peak_gflops
    assert (spec.local_memory_kind == "global") == (vendor == "arm")
    assert spec.unified_memory


def test_which_devices_share_memory() -> None:
    """With crossings that the runtime can do without a copy: ours, for OpenCL."""
    mali = resolve_target("mali-t860")
    assert mali.shared == {"read"}
    fine = replace(mali.spec, fine_grained_memory=True)
    assert replace(mali, spec=fine).shared == {"read", "write"}
    own = replace(fine, unified_memory=False)
    assert not replace(mali, spec=own).shared
    assert not resolve_target("jetson-orin-nano").shared
    assert not resolve_target("llvm").shared


def test_keys_of_presets_are_unique() -> None:
    keys = [preset.spec.key for preset in PRESETS.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("target", ["opencl", "mali-t860", "intel-hd505", "qcom/adreno-opencl"])
def test_opencl_pins_no_wave(target: str) -> None:
    """TVM would put barriers inside of conditions on the lane."""
    assert int(resolve_target(target).target.attrs["thread_warp_size"]) == 1


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("nvidia/jetson-orin-nano", "nvidia/jetson-orin-nano"),
        ("nvidia/jetson-agx-orin-64gb", "nvidia/jetson-agx-orin"),
        ("nvidia/jetson-agx-xavier", "nvidia/jetson-agx-xavier"),
        ("qcom/adreno-opencl", "qcom/adreno-opencl"),
    ],
)
def test_tags_of_gpus(target: str, key: str) -> None:
    resolved = resolve_target(target)
    tag = tvm.target.Target(target)
    assert resolved.spec.key == key
    assert resolved.kind == tag.kind.name
    assert resolved.target.attrs.get("arch") == tag.attrs.get("arch")
    assert resolved.spec.max_work_group_size == int(tag.attrs["max_threads_per_block"])
    if tag.host is not None:
        assert resolved.cpu.target.attrs["mcpu"] == tag.host.attrs["mcpu"]


def spec_said(name: str, cores: int, capability: str) -> DeviceSpec:
    """Describe a device by a driver's answers."""
    said = {
        "device_name": name,
        "multi_processor_count": cores,
        "compute_version": capability,
        "max_clock_rate": 625_000,
        "warp_size": 32,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 48 << 10,
        "l2_cache_size_bytes": 2 << 20,
    }
    return CudaKind().spec_of(SimpleNamespace(**said), 0)


@pytest.mark.parametrize(("name", "cores", "bandwidth"), [("Orin", 8, 68.0), ("Orin", 14, 204.8)])
def test_a_board_that_the_driver_names_has_the_memory_of_its_preset(
    name: str, cores: int, bandwidth: float
) -> None:
    """The driver of every Jetson Orin calls it so; the number of multiprocessors tells which."""
    spec = spec_said(name, cores, "8.7")
    assert (spec.name, spec.cores, spec.bandwidth_gbs) == ("Orin", cores, bandwidth)
    assert spec_said("NVIDIA H100", cores, "8.7").bandwidth_gbs == 0


@pytest.mark.parametrize(
    ("name", "capability", "cores"),
    [
        ("Tesla T4", "7.5", TURING),
        ("NVIDIA GeForce RTX 2070", "7.5", TURING),
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", None),
        ("NVIDIA T1000 8GB", "7.5", None),
        ("NVIDIA GeForce MX450", "7.5", None),
        ("Tesla V100-SXM2-16GB", "7.0", None),
        ("NVIDIA H100", "9.0", AMPERE),
    ],
)
def test_tensor_cores_are_told_by_capability_and_name(
    name: str, capability: str, cores: Any
) -> None:
    assert spec_said(name, 40, capability).tensor_cores == cores


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("target", "spec"), [("opencl", GENERIC_OPENCL), ("cuda", GENERIC_CUDA)])
def test_without_a_device_a_plain_name_is_a_stated_generic_one(target: str, spec: Any) -> None:
    for written in (target, {"kind": target}):
        resolved = resolve_target(written)
        assert resolved.spec == spec
        assert "generic" in resolved.spec.name and "none is here" in resolved.spec.name
        assert resolved.cpu.spec == resolve_target("llvm").spec
    assert resolve_target("cuda").target.attrs["arch"] == "sm_75"


@pytest.mark.usefixtures("no_gpu")
def test_what_a_dict_says_counts() -> None:
    resolved = resolve_target({"kind": "opencl", "max_num_threads": 64})
    assert resolved.spec.max_work_group_size == 64
    assert int(resolved.target.attrs["max_threads_per_block"]) == 64
    orin = resolve_target({"kind": "cuda", "arch": "sm_87"})
    assert orin.target.attrs["arch"] == "sm_87"
    assert orin.spec.key == "cuda/sm_87"


def test_a_plain_name_is_this_machines_device(gpu: str) -> None:
    resolved = resolve_target(gpu)
    device = tvm.device(gpu, 0)
    assert resolved.spec.cores == int(device.multi_processor_count)
    assert resolved.spec.max_work_group_size <= int(device.max_threads_per_block)
    if gpu == "cuda":
        version = str(device.compute_version).replace(".", "")
        assert resolved.target.attrs["arch"] == f"sm_{version}"


def test_a_host_can_be_named() -> None:
    for host in ("arm/rasp4b64", {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}):
        assert resolve_target("opencl", host).architecture == "aarch64"
    assert resolve_target("mali-t860", "llvm").architecture == machine()


def refused(*arguments: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_target(*arguments)
    return caught.value


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("mali-t86", "'mali-t860'"),
        ("jetson-orin", "'jetson-agx-orin'"),
        ("nvidia/jetson-orin-nan", "'nvidia/jetson-orin-nano'"),
        ("opncl", "'opencl'"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(target: str, meant: str) -> None:
    assert meant in str(refused(target))


@pytest.mark.parametrize("target", ["vulkan", "apple/m1-gpu", "qcom/hexagon-v68"])
def test_other_kinds_are_refused(target: str) -> None:
    assert "'opencl'" in str(refused(target))


def test_hosts_that_make_no_sense() -> None:
    assert refused("llvm", "llvm").name == "host"
    assert refused("opencl", "cuda").name == "host"


def test_a_presets_host_has_the_peak_of_its_unlike_cores() -> None:
    """Two Cortex-A72 and four A53; another CPU has its own."""
    known = resolve_target("mali-t860").cpu.spec
    assert (known.cores, known.peak_gflops) == (6, 51.2)
    other = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 2}
    assert resolve_target("mali-t860", other).cpu.spec.peak_gflops == 64.0
