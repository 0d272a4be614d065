"""DeviceSpecs of CPUs: the one we run on, and those we compile for."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal

import tvm
from tvm.target import codegen

from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.host import CODEGEN_FEATURES, SYSFS, host_features, physical_cores

__all__ = ["IN_ORDER", "cpu_spec", "native_cpu"]

IN_ORDER = frozenset({"cortex-a53", "cortex-a55"})
"""CPUs of ``mcpu`` that start instructions in the order of the code."""

# What to assume of an unknown CPU: a quad-core edge part.
_DEFAULT_CORES = 4
_WIDEST = 64  # bytes of a vector
_DEFAULT_CLOCK_GHZ = 2.0


@functools.cache
def native_cpu() -> tvm.target.Target:
    """This machine's CPU, less what a hypervisor masks."""
    config: dict[str, Any] = {"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu())}
    here = host_features()
    if here is not None:
        nominal = codegen.llvm_get_cpu_features(tvm.target.Target(config))
        masked = {str(f) for f in nominal} & CODEGEN_FEATURES - here
        if masked:
            config["mattr"] = [f"-{feature}" for feature in sorted(masked)]
    return tvm.target.Target(config)


def cpu_spec(target: tvm.target.Target, *, native: bool, most_simd_bytes: int = 0) -> DeviceSpec:
    """Return the spec of the CPU that an LLVM target names.

    Parameters
    ----------
    target : tvm.target.Target
        Of kind ``llvm``.
    native : bool
        The target is the CPU we run on: ask the operating system for cores, caches and clock.
    most_simd_bytes : int
        The widest vectors that the code's compiler makes where that is not LLVM here; 0: all that
        the CPU has.
    """
    triple = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    architecture = triple.split("-")[0]
    features = set(codegen.llvm_get_cpu_features(target))
    simd_bytes, registers, fma_units = _vector_unit(
        architecture, features, most_simd_bytes or _WIDEST
    )
    cores = int(target.attrs.get("num-cores", 0)) or (
        physical_cores() if native else _DEFAULT_CORES
    )
    clock = _max_clock_ghz() if native else _DEFAULT_CLOCK_GHZ
    caches = _caches() if native else {}
    mcpu = str(target.attrs.get("mcpu", "") or "generic")
    return DeviceSpec(
        key=f"{architecture}/{mcpu}",
        kind="cpu",
        name=_model_name() if native else mcpu,
        cores=cores,
        simd_bytes=simd_bytes,
        vector_registers=registers,
        l1_cache=caches.get(1, 32 * 1024),
        l2_cache=caches.get(2, 512 * 1024),
        l3_cache=caches.get(3, 0),
        # An estimate from the data sheet's terms, for placement; benchmarks measure their own peak.
        peak_gflops=cores * clock * (simd_bytes // 4) * 2 * fma_units,
        bandwidth_gbs=10.0 * cores,
        float16="avx512fp16" in features or "fullfp16" in features,
        float16_vectors=not features.isdisjoint(("f16c", "avx512f", "neon")),
        dot_product=_dot_product(architecture, simd_bytes, features),
        pair_product=_pair_product(simd_bytes, features, mcpu),
        in_order=mcpu in IN_ORDER,
        byte_tables=simd_bytes == 64 and "avx512vbmi" in features,
    )


def _vector_unit(architecture: str, features: set[str], most: int) -> tuple[int, int, int]:
    """Bytes in a vector register, registers, and multiply-add units of one core."""
    if "avx512f" in features and most >= 64:
        return 64, 32, 2
    if "avx2" in features and most >= 32:
        return 32, 16, 2
    if "avx" in features and most >= 32:
        return 32, 16, 1
    if architecture.startswith(("aarch64", "arm64")):
        return 16, 32, 2
    return 16, 16, 1


def _pair_product(
    simd_bytes: int, features: set[str], mcpu: str
) -> Literal["", "vdpbf16ps", "bfdot"]:
    """Return the instruction that multiplies pairs of bfloat16, where it is faster than two.

    Zen 4 starts two each cycle. A Xeon (Emerald Rapids) took 1.5 times as long by it as in float32.
    """
    own = simd_bytes == 64 and "avx512bf16" in features and mcpu.startswith("znver")
    if own:
        return "vdpbf16ps"
    return "bfdot" if simd_bytes == 16 and "bf16" in features else ""


def _dot_product(
    architecture: str, simd_bytes: int, features: set[str]
) -> Literal["", "vnni512", "vnni256", "smmla", "sdot", "smull"]:
    """The instruction for products of 8-bit numbers."""
    if simd_bytes == 64 and "avx512vnni" in features:
        return "vnni512"
    if simd_bytes >= 32 and ("avxvnni" in features or {"avx512vnni", "avx512vl"} <= features):
        return "vnni256"
    if architecture.startswith(("aarch64", "arm64")):
        if "dotprod" not in features:
            return "smull"
        return "smmla" if "i8mm" in features else "sdot"
    return ""


def _max_clock_ghz() -> float:
    try:
        return int((SYSFS / "cpu0/cpufreq/cpuinfo_max_freq").read_text()) / 1e6
    except (OSError, ValueError):
        pass  # virtual machines have no cpufreq; /proc/cpuinfo shows the current clock
    match = re.search(r"cpu MHz\s*:\s*([\d.]+)", _cpuinfo())
    return float(match.group(1)) / 1e3 if match else _DEFAULT_CLOCK_GHZ


def _caches() -> dict[int, int]:
    """Bytes by cache level, of the first CPU; instruction caches left out."""
    sizes = {}
    for index in sorted((SYSFS / "cpu0/cache").glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            unit = {"K": 1024, "M": 1024**2}.get(size[-1:], 1)
            sizes[level] = int(size.rstrip("KM")) * unit
    return sizes


def _model_name() -> str:
    match = re.search(r"(?:model name|Model|Hardware)\s*:\s*(.+)", _cpuinfo())
    return match.group(1).strip() if match else "CPU"


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
