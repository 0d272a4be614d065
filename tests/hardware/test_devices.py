"""DeviceSpec from a driver's answers; stable names of devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tvm

import tvm_edge
from tests.runtime.support import run_python
from tests.schedules.gpu.graphs import conv
from tests.schedules.gpu.harness import assert_legal, gpu_kernels
from tvm_edge.hardware import resolve_target
from tvm_edge.hardware.kinds import KINDS
from tvm_edge.hardware.kinds import opencl as opencl_kind
from tvm_edge.hardware.presets import PRESETS

MALI = {
    "name": "Mali-T860",
    "vendor": "ARM",
    "compute_units": 4,
    "max_work_group_size": 256,
    "max_work_item_sizes": [256, 256, 256],
    "local_memory": 32768,
    "local_memory_kind": "global",
    "cache_line": 64,
    "cache_size": 262144,
    "unified_memory": True,
    "float16": True,
    "float64": False,
    "sub_group_sizes": [],
    "warp_size": 0,
    "registers": 0,
}


def probed(monkeypatch: pytest.MonkeyPatch, **info: Any) -> tvm_edge.DeviceSpec:
    """The spec of an OpenCL device that answers so."""
    monkeypatch.setattr(tvm.runtime, "enabled", lambda api: True)
    unknown = dict.fromkeys(
        ("multi_processor_count", "max_threads_per_block", "max_shared_memory_per_block"), 0
    )
    device = SimpleNamespace(exist=True, **unknown)
    monkeypatch.setattr(tvm, "device", lambda api, index: device)
    monkeypatch.setattr(opencl_kind, "_device_info", lambda index: {**MALI, **info})
    spec = KINDS["opencl"].probe()
    assert spec is not None
    return spec


def test_a_known_gpu_keeps_the_figures_that_drivers_do_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = probed(monkeypatch, compute_units=2, max_work_group_size=128)
    preset = PRESETS["mali-t860"].spec
    assert (spec.cores, spec.max_work_group_size) == (2, 128)
    assert (spec.key, spec.alus, spec.bandwidth_gbs) == (
        preset.key,
        preset.alus,
        preset.bandwidth_gbs,
    )


def test_an_unknown_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = probed(
        monkeypatch,
        name="Intel(R) Some Graphics [0x1234]",
        vendor="Intel(R) Corporation",
        sub_group_sizes=[8, 16, 32],
        extensions="cl_khr_fp16 cl_intel_subgroups cl_intel_required_subgroup_size",
        local_memory_kind="dedicated",
    )
    assert spec.key == "intel/some-graphics-0x1234"
    assert spec.sub_groups == (8, 16, 32)
    assert spec.wave == 32
    assert spec.local_memory_kind == "dedicated"


def test_sub_groups_are_those_with_block_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may let kernels require a size and lack what they would do with it."""
    spec = probed(monkeypatch, sub_group_sizes=[8, 16], extensions="cl_khr_subgroups")
    assert spec.sub_groups == ()
    named = probed(
        monkeypatch, name="Intel(R) HD Graphics 505", extensions="cl_khr_fp16", sub_group_sizes=[]
    )
    assert named.sub_groups == ()  # what a driver says of its limits goes before a preset


def test_opencl_on_a_cpu_has_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their vectors are the widest that the driver's compiler makes, not wider than the CPU's."""
    here = resolve_target("llvm").spec
    wide = probed(monkeypatch, name="some driver", type="cpu", native_float_width=256)
    assert wide.on_cpu and wide.kind == "gpu" and wide.has_cpu_cores
    assert (wide.simd_bytes, wide.vector_registers) == (here.simd_bytes, here.vector_registers)
    assert (wide.l1_cache, wide.peak_gflops) == (here.l1_cache, here.peak_gflops)
    silent = probed(monkeypatch, name="some driver", type="cpu")
    assert silent.simd_bytes == here.simd_bytes
    narrow = probed(monkeypatch, name="some driver", type="cpu", native_float_width=4)
    assert narrow.simd_bytes == 16
    assert narrow.peak_gflops <= here.peak_gflops
    assert not probed(monkeypatch, name="some driver", type="gpu").on_cpu


def test_sub_groups_of_a_cpu_are_no_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """pocl 5 offers up to 512, which are loops: nothing executes in lockstep, and nobody warns."""
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    spec = probed(monkeypatch, name="some driver", type="cpu", sub_group_sizes=sizes)
    assert spec.wave == 1


def test_the_limit_of_the_first_dimension_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probed(monkeypatch, max_work_item_sizes=[64, 64, 64]).max_work_group_size == 64


@pytest.mark.parametrize(
    ("said", "name", "safe"),
    [
        ({"compute_units": 0}, "cores", 1),
        ({"max_work_group_size": 0, "max_work_item_sizes": []}, "max_work_group_size", 32),
        ({"max_work_item_sizes": [0, 0, 0]}, "max_work_group_size", 32),
        ({"local_memory": 0}, "local_memory", 1024),
        ({"local_memory": 2**64 - 1}, "local_memory", 1024),
        ({"registers": 2**32 - 1}, "registers", 0),
        ({"cache_line": 2**31, "name": "unknown"}, "cache_line", 64),
        ({"warp_size": 2**32 - 1, "name": "unknown"}, "wave", 1),
        ({"cache_size": 2**64 - 1, "name": "unknown"}, "l2_cache", 0),
    ],
    ids=str,
)
def test_limits_that_cannot_be_are_not_believed(
    said: dict[str, Any], name: str, safe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(tvm_edge.TvmEdgeWarning, match=rf"reports {name}=\d+, which cannot be"):
        spec = probed(monkeypatch, **said)
    assert getattr(spec, name) == safe
    # Schedules for it are legal: a tile, or the rules that need none.
    graph = conv(1, 16, 9, 11, outputs=24, kernel=(3, 3), pads=[1] * 4)
    for kernel in gpu_kernels(graph.model(), spec):
        assert_legal(kernel, spec)


@pytest.mark.filterwarnings("error")
def test_limits_that_can_be_are_believed_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    probed(monkeypatch)
    probed(monkeypatch, name="unknown", cache_size=0, cache_line=0)


def test_devices_are_listed_with_the_cpu_first(gpu: str) -> None:
    found = tvm_edge.devices()
    assert found[0].target == "llvm"
    device = next(d for d in found if d.target == gpu)
    assert device.index == 0
    assert device.key == resolve_target(gpu).spec.key
    assert device.cores > 0


def test_keys_are_the_same_in_every_process(gpu: str) -> None:
    code = "import tvm_edge; print([d.key for d in tvm_edge.devices()])"
    assert run_python(code).strip() == str([d.key for d in tvm_edge.devices()])


@pytest.mark.parametrize(
    ("version", "launch_us"), [("7.5", 1.65), ("8.9", 1.65), ("9.0", 1.25), ("12.1", 1.25)]
)
def test_launches_cost_less_where_they_do_not_wait(
    version: str, launch_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(
        exist=True,
        device_name="NVIDIA Some GPU",
        compute_version=version,
        multi_processor_count=20,
        max_clock_rate=1500000,
        warp_size=32,
        max_threads_per_block=1024,
        max_shared_memory_per_block=49152,
        l2_cache_size_bytes=4 << 20,
    )
    monkeypatch.setattr(tvm.runtime, "enabled", lambda api: True)
    monkeypatch.setattr(tvm, "device", lambda api, index: device)
    spec = KINDS["cuda"].probe()
    assert spec is not None and spec.launch_us == launch_us
