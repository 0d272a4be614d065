"""Reading the machine: features that every core has, cores that this process may use."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_edge
from tests.runtime.support import run_python
from tvm_edge import host

X86 = """\
processor\t: {cpu}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) CPU
flags\t\t: fpu sse2 pni ssse3 sse4_1 sse4_2 popcnt avx f16c fma avx2 bmi1 abm avx512f avx512_vnni
vmx flags\t: vnmi avx512bw
bugs\t\t: spectre_v1
"""
LITTLE = """\
processor\t: {cpu}
BogoMIPS\t: 48.00
Features\t: fp asimd evtstrm aes crc32 cpuid
CPU part\t: 0xd03
"""
BIG = LITTLE.replace("cpuid", "cpuid atomics asimdhp asimdrdm asimddp sve")


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    """Where a test writes its sample of /proc/cpuinfo."""
    return tmp_path / "cpuinfo"


def test_x86_flags_get_llvm_names(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine", lambda: "x86_64")
    cpuinfo.write_text("\n".join(X86.format(cpu=i) for i in range(2)))
    assert host.host_features(str(cpuinfo)) == {
        *("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "f16c", "fma", "avx2"),
        *("bmi", "lzcnt", "avx512f", "avx512vnni"),
    }


def test_big_little_has_what_both_have(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine", lambda: "aarch64")
    cpuinfo.write_text("\n".join(BIG.format(cpu=i) for i in range(2)))
    assert host.host_features(str(cpuinfo)) == {
        *("neon", "fp-armv8", "fullfp16", "dotprod", "lse", "rdm", "sve"),
    }
    mixed = cpuinfo.with_name("mixed")
    mixed.write_text("\n".join([LITTLE.format(cpu=0), BIG.format(cpu=1), BIG.format(cpu=2)]))
    assert host.host_features(str(mixed)) == {"neon", "fp-armv8"}


def test_an_operating_system_that_does_not_say(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.host_features(str(cpuinfo)) is None
    cpuinfo.write_text("Processor: something\n")
    assert host.host_features(str(cpuinfo)) is None
    monkeypatch.setattr(host, "machine", lambda: "riscv64")
    other = cpuinfo.with_name("riscv")
    other.write_text(X86.format(cpu=0))
    assert host.host_features(str(other)) is None


def test_this_machine_says_what_it_has() -> None:
    here = host.host_features()
    assert here
    assert here <= host.CODEGEN_FEATURES
    baseline = {"x86_64": "sse3", "aarch64": "neon"}
    assert baseline[host.machine()] in here


@pytest.mark.parametrize(
    ("uname", "triple"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("aarch64", "aarch64")],
)
def test_machine_speaks_llvm(monkeypatch: pytest.MonkeyPatch, uname: str, triple: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: uname)
    assert host.machine() == triple


def test_cores_are_among_the_allowed_cpus() -> None:
    assert set(host.allowed_cpus()) == os.sched_getaffinity(0)
    assert 1 <= host.physical_cores() <= len(host.allowed_cpus())


@given(threads_per_core=st.integers(1, 4), cores=st.integers(1, 6), data=st.data())
def test_hyper_threads_count_once(
    threads_per_core: int,
    cores: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of the CPUs the process may use, those of one core count as one."""
    sysfs = tmp_path_factory.mktemp("sysfs")
    cpus = range(threads_per_core * cores)
    for cpu in cpus:  # CPU i is a thread of core i % cores, as Linux numbers them on Intel's
        siblings = ",".join(str(c) for c in cpus if c % cores == cpu % cores)
        folder = sysfs / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    allowed = data.draw(st.sets(st.sampled_from(cpus), min_size=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "SYSFS", sysfs)
        patch.setattr(host, "allowed_cpus", lambda: sorted(allowed))
        assert host.physical_cores() == len({cpu % cores for cpu in allowed})


def test_without_sysfs_every_cpu_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SYSFS", tmp_path)
    assert host.physical_cores() == len(host.allowed_cpus())


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/app\n", {"app/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/app\n", {"app/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/app\n", {"app/cpu.max": "garbage\n", "cpu.max": "1 0\n"}, None),
        (
            "5:memory:/x\n4:cpu,cpuacct:/app\n0::/\n",
            {"cpu/app/cpu.cfs_quota_us": "300000\n", "cpu/app/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
        (
            "4:cpu,cpuacct:/app\n",
            {
                "cpu,cpuacct/app/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        ("", {}, None),
    ],
)
def test_quotas_of_control_groups(
    groups: str,
    files: dict[str, str],
    expected: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both versions, the group and those around it."""
    own = tmp_path / "own"
    own.write_text(groups)
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(host, "_OWN_CGROUPS", own)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroup")
    assert host.cpu_quota() == expected


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.9, 1), (2.0, 2), (7.5, 4), (None, 4)])
def test_whole_cores_of_the_quota_count(
    quota: float | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SYSFS", tmp_path)
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    assert host.physical_cores([0, 1, 2, 3]) == cores


def test_devices_lists_the_cpu_first() -> None:
    """Also after a compilation, which imports every part of the package."""
    importlib.import_module("tvm_edge.compiler")
    found = tvm_edge.devices()
    assert (found[0].target, found[0].index) == ("llvm", 0)
    assert found[0].name
    assert found[0].cores == host.physical_cores()
    assert [device.target for device in found].count("llvm") == 1
    fields = json.loads(json.dumps([device.to_dict() for device in found]))
    assert fields[0]["details"]["simd_bytes"] == found[0].details["simd_bytes"]


def test_devices_says_why_it_needs_the_whole_tvm() -> None:
    """The runtime tier has no LLVM to ask; the message names the variable that chose it."""
    output = run_python(
        """
import tvm_edge
try:
    print([device.target for device in tvm_edge.devices()])
except tvm_edge.TvmEdgeError as err:
    print(err)
""",
        environment={"TVM_USE_RUNTIME_LIB": "1"},
    )
    assert "'llvm'" in output or "TVM_USE_RUNTIME_LIB" in output
