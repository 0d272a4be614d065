"""The machine we run on: its architecture, cores and vector instruction sets, without LLVM.

Loading an artifact on a machine that lacks an instruction must end in an error, not in SIGILL, and
the runtime tier has no LLVM to ask: Linux's ``/proc/cpuinfo`` has the answer, in other names.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CODEGEN_FEATURES",
    "allowed_cpus",
    "cpu_quota",
    "host_features",
    "machine",
    "physical_cores",
]

SYSFS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")

# LLVM's name → Linux's flag, for what LLVM may emit on its own. Features that only matter to
# system software or intrinsics (pku, clzero, rdpid, …) are left out: code never faults on them.
_X86 = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "lzcnt": "abm",
    "movbe": "movbe",
    "adx": "adx",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "avxvnniint8": "avx_vnni_int8",
    "avxifma": "avx_ifma",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
_AARCH64 = {
    "neon": "asimd",
    "fp-armv8": "fp",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
# By architecture the line of cpuinfo that has the flags. Where a program is emulated, the file may
# be the other machine's.
_FLAGS = {"x86_64": ("flags", _X86), "aarch64": ("Features", _AARCH64)}

CODEGEN_FEATURES = frozenset(_X86) | frozenset(_AARCH64)
"""LLVM feature names that this module can tell present or absent."""


def machine() -> str:
    """The architecture as LLVM triples spell it: ``x86_64``, ``aarch64``, …"""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


@functools.cache
def host_features(cpuinfo: str = "/proc/cpuinfo") -> frozenset[str] | None:
    """LLVM names of the features of this CPU among :data:`CODEGEN_FEATURES`.

    Returns
    -------
    frozenset[str] or None
        ``None`` where the operating system does not say (not Linux, an unknown architecture, an
        emulator that shows the file of the machine it runs on).
    """
    if machine() not in _FLAGS:
        return None
    label, names = _FLAGS[machine()]
    try:
        text = Path(cpuinfo).read_text()
    except OSError:
        return None
    flags = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == label:
            present = set(value.split())
            # A feature must be on every core: big.LITTLE may differ.
            flags = present if flags is None else flags & present
    if flags is None:
        return None
    return frozenset(llvm for llvm, linux in names.items() if linux in flags)


def allowed_cpus() -> list[int]:
    """Logical CPUs that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: Sequence[int] | None = None) -> int:
    """Cores that this process may use, hyper-threads of one core counted once.

    Whole cores of the process's quota, if that is less: threads beyond it would be stopped for the
    rest of each period.

    Parameters
    ----------
    cpus : sequence of int, optional
        Of these logical CPUs; default all that the process may run on.
    """
    siblings = set()
    for cpu in allowed_cpus() if cpus is None else cpus:
        try:
            topology = (SYSFS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:  # a container without sysfs: every CPU is its own core
            topology = str(cpu)
        siblings.add(topology)
    quota = cpu_quota()
    return len(siblings) if quota is None else max(1, min(len(siblings), int(quota)))


def cpu_quota() -> float | None:
    """Cores' worth of time that the process's control groups grant it, of version 1 or 2.

    Returns
    -------
    float or None
        The least of the group and those around it; ``None`` without a limit.
    """
    limits = []
    for line in _lines(_OWN_CGROUPS):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        version_2 = not controllers
        if not version_2 and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS if version_2 else _version_1_root(controllers)
        # In a container the path may be the host's, and its own group is the root.
        folder = root / path.lstrip("/")
        for group in [folder, *folder.parents]:
            if not group.is_relative_to(root):
                break
            limits.append(_limit_2(group) if version_2 else _limit_1(group))
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def _version_1_root(controllers: str) -> Path:
    folders = [_CGROUPS / "cpu", _CGROUPS / controllers]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _limit_2(group: Path) -> float | None:
    """``cpu.max`` is "max 100000", or microseconds of each period: "50000 100000"."""
    words = " ".join(_lines(group / "cpu.max")).split()
    return _cores(*words) if len(words) == 2 else None


def _limit_1(group: Path) -> float | None:
    quota, period = (_lines(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _cores(quota[0], period[0]) if quota and period else None


def _cores(quota: str, period: str) -> float | None:
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or nothing that Linux writes
        return None
    return limit if limit > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
