"""Boards and GPUs by name: published figures, for compiling where the device is not.

Sources: the vendors' data sheets and programming guides (Arm "Mali GPU OpenCL Developer Guide",
Intel "The Compute Architecture of Intel Processor Graphics Gen9", NVIDIA's Jetson data sheets and
CUDA Programming Guide, Qualcomm "Snapdragon Mobile Platform OpenCL"), and what drivers answer on
boards. A peak is cores x multiply-add lanes x 2 x highest clock; Mali's registers are those that a
core has at full occupancy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.hardware.tensor_cores import TURING, tensor_cores_since

__all__ = ["GENERIC_CUDA", "GENERIC_OPENCL", "PRESETS", "Preset", "preset_by_device_name"]

KIB, MIB = 1024, 1024 * 1024

# Until the host goes on after a kernel, as phones' OpenCL drivers have it.
_WAIT_US = 50.0


@dataclass(frozen=True)
class Preset:
    """A GPU with the machine it is built into.

    Attributes
    ----------
    api : {"opencl", "cuda"}
    spec : DeviceSpec
    host : dict or None
        LLVM target of the CPU beside the GPU; ``None``: the machine that compiles.
    host_gflops : float
        Single-precision peak of that CPU, whose cores are not all the one that `host` names: the
        sum over them of clock x 16 operations a cycle (Cortex-A75 and newer), 8 (A57, A72, A73,
        A55) or 4 (A53: half of its 8, as code is for the larger cores, and an A53 starts no
        multiply-add beside its loads of 128 bits). 0: as its cores say.
    arch : str
        CUDA architecture, ``sm_87``.
    tags : tuple[str, ...]
        TVM's tags for the same device.
    matches : tuple[str, ...]
        Fragments of the names by which drivers call it.
    """

    api: Literal["opencl", "cuda"]
    spec: DeviceSpec
    host: dict[str, Any] | None = None
    host_gflops: float = 0.0
    arch: str = ""
    tags: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()


def _aarch64(mcpu: str, cores: int) -> dict[str, Any]:
    return {
        "kind": "llvm",
        "mtriple": "aarch64-linux-gnu",
        "mcpu": mcpu,
        "mattr": ["+neon"],
        "num-cores": cores,
    }


def _mali(
    name: str,
    *,
    cores: int,
    lanes: int,
    wave: int,
    clock_ghz: float,
    work_group: int,
    registers: int,
    l2: int,
    bandwidth: float,
    float64: bool = False,
    dot_product: Literal["", "arm_dot"] = "",
) -> DeviceSpec:
    return DeviceSpec(
        key=f"arm/{name.lower()}",
        kind="gpu",
        name=f"Arm {name} MP{cores}",
        cores=cores,
        alus=lanes,
        wave=wave,
        simd_bytes=16,
        max_work_group_size=work_group,
        registers=registers,
        local_memory=32 * KIB,
        local_memory_kind="global",
        cache_line=64,
        l1_cache=16 * KIB,
        l2_cache=l2,
        peak_gflops=round(cores * lanes * 2 * clock_ghz, 1),
        bandwidth_gbs=bandwidth,
        copy_latency_us=_WAIT_US,
        float16=True,
        float64=float64,
        dot_product=dot_product,
    )


def _intel(
    key: str, name: str, *, units: int, clock_ghz: float, work_group: int, l3: int, bandwidth: float
) -> DeviceSpec:
    return DeviceSpec(
        key=f"intel/{key}",
        kind="gpu",
        name=name,
        cores=units,
        alus=8,  # two 4-wide FPUs in an execution unit
        wave=16,
        sub_groups=(8, 16, 32),
        simd_bytes=16,
        max_work_group_size=work_group,
        registers=7 * 128 * 8,  # seven threads of 128 registers of 32 bytes
        local_memory=64 * KIB,
        local_memory_kind="dedicated",
        cache_line=64,
        l1_cache=0,
        l2_cache=l3,
        peak_gflops=round(units * 8 * 2 * clock_ghz, 1),
        bandwidth_gbs=bandwidth,
        copy_latency_us=_WAIT_US,
        float16=True,
        float64=name != "Intel Iris Xe",
        dot_product="khr_dot" if name == "Intel Iris Xe" else "",
    )


def _adreno(
    model: str, *, units: int, lanes: int, clock_ghz: float, l2: int, bandwidth: float
) -> DeviceSpec:
    return DeviceSpec(
        key=f"qualcomm/adreno-{model}",
        kind="gpu",
        name=f"Qualcomm Adreno {model}",
        cores=units,
        alus=lanes,
        wave=64,
        simd_bytes=16,
        max_work_group_size=1024,
        registers=64 * KIB // 4,
        local_memory=32 * KIB,
        local_memory_kind="dedicated",
        cache_line=64,
        l1_cache=1 * KIB,
        l2_cache=l2,
        peak_gflops=round(units * lanes * 2 * clock_ghz, 1),
        bandwidth_gbs=bandwidth,
        copy_latency_us=_WAIT_US,
        float16=True,
        float64=False,
    )


def _jetson(
    key: str,
    name: str,
    *,
    multiprocessors: int,
    clock_ghz: float,
    l2: int,
    bandwidth: float,
    capability: tuple[int, int] = (8, 7),
) -> DeviceSpec:
    return DeviceSpec(
        key=f"nvidia/{key}",
        kind="gpu",
        name=f"NVIDIA {name}",
        cores=multiprocessors,
        alus=128,
        wave=32,
        simd_bytes=16,
        unaligned_vectors=False,
        max_work_group_size=1024,
        registers=65536,
        local_memory=48 * KIB,
        local_memory_kind="dedicated",
        cache_line=128,
        l1_cache=128 * KIB,
        l2_cache=l2,
        peak_gflops=round(multiprocessors * 128 * 2 * clock_ghz, 1),
        bandwidth_gbs=bandwidth,
        float16=capability >= (5, 3),
        tensor_cores=tensor_cores_since(capability),
        dot_product="dp4a" if capability >= (6, 1) else "",
    )


PRESETS: dict[str, Preset] = {
    # Rockchip RK3399 (Firefly, Rock960, Acer aiSage): the board of the ICPP'19 and APSys'20 papers.
    "mali-t860": Preset(
        "opencl",
        _mali(
            "Mali-T860",
            cores=4,
            lanes=17,  # two 128-bit vector units, each with a scalar and a dot-product unit
            wave=1,  # Midgard runs each work-item by itself
            clock_ghz=0.8,
            work_group=256,
            registers=4096,
            l2=256 * KIB,
            bandwidth=12.8,
            float64=True,
        ),
        _aarch64("cortex-a72", 6),
        51.2,
        matches=("Mali-T860",),
    ),
    # Amlogic S922X, A311D (Odroid-N2, Khadas VIM3)
    "mali-g52": Preset(
        "opencl",
        _mali(
            "Mali-G52",
            cores=2,
            lanes=24,  # three execution engines of eight lanes
            wave=8,
            clock_ghz=0.8,
            work_group=384,
            registers=24576,
            l2=256 * KIB,
            bandwidth=13.2,
            dot_product="arm_dot",
        ),
        _aarch64("cortex-a73", 6),
        72.8,
        matches=("Mali-G52",),
    ),
    # HiSilicon Kirin 970 (HiKey 970)
    "mali-g72": Preset(
        "opencl",
        _mali(
            "Mali-G72",
            cores=12,
            lanes=12,  # three execution engines of four lanes
            wave=4,
            clock_ghz=0.746,
            work_group=384,
            registers=24576,
            l2=1 * MIB,
            bandwidth=29.8,
        ),
        _aarch64("cortex-a73", 8),
        104.3,
        matches=("Mali-G72",),
    ),
    # HiSilicon Kirin 980
    "mali-g76": Preset(
        "opencl",
        _mali(
            "Mali-G76",
            cores=10,
            lanes=24,
            wave=8,
            clock_ghz=0.72,
            work_group=384,
            registers=49152,
            l2=2 * MIB,
            bandwidth=34.1,
            dot_product="arm_dot",
        ),
        _aarch64("cortex-a76", 8),
        202.2,
        matches=("Mali-G76",),
    ),
    # Pentium N4200, Atom x7-E3950 (AWS DeepLens and its like): Gen9, 18 execution units
    "intel-hd505": Preset(
        "opencl",
        _intel(
            "hd505",
            "Intel HD Graphics 505",
            units=18,
            clock_ghz=0.75,
            work_group=256,
            l3=384 * KIB,
            bandwidth=38.4,
        ),
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "goldmont", "num-cores": 4},
        matches=("HD Graphics 505",),
    ),
    # Eighth- and ninth-generation Core: Gen9.5, 24 execution units
    "intel-uhd630": Preset(
        "opencl",
        _intel(
            "uhd630",
            "Intel UHD Graphics 630",
            units=24,
            clock_ghz=1.15,
            work_group=256,
            l3=768 * KIB,
            bandwidth=41.6,
        ),
        matches=("UHD Graphics 630",),
    ),
    # Eleventh-generation Core: Xe-LP, 96 execution units
    "intel-iris-xe": Preset(
        "opencl",
        _intel(
            "iris-xe",
            "Intel Iris Xe",
            units=96,
            clock_ghz=1.35,
            work_group=512,
            l3=3840 * KIB,
            bandwidth=68.3,
        ),
        matches=("Iris(R) Xe", "Iris Xe"),
    ),
    # Snapdragon 845 (Google Pixel 3 XL)
    "adreno-630": Preset(
        "opencl",
        _adreno("630", units=2, lanes=256, clock_ghz=0.71, l2=1 * MIB, bandwidth=29.8),
        _aarch64("cortex-a75", 8),
        236.8,
        matches=("Adreno(TM) 630",),
    ),
    # Snapdragon 855
    "adreno-640": Preset(
        "opencl",
        _adreno("640", units=2, lanes=384, clock_ghz=0.585, l2=1 * MIB, bandwidth=34.1),
        _aarch64("cortex-a76", 8),
        219.2,
        matches=("Adreno(TM) 640",),
    ),
    # Snapdragon 865
    "adreno-650": Preset(
        "opencl",
        _adreno("650", units=2, lanes=512, clock_ghz=0.587, l2=1 * MIB, bandwidth=44.0),
        _aarch64("cortex-a77", 8),
        219.2,
        matches=("Adreno(TM) 650",),
    ),
    "jetson-orin-nano": Preset(
        "cuda",
        _jetson(
            "jetson-orin-nano",
            "Jetson Orin Nano",
            multiprocessors=8,
            clock_ghz=0.625,
            l2=2 * MIB,
            bandwidth=68.0,
        ),
        _aarch64("cortex-a78", 6),
        144.0,
        "sm_87",
        tags=("nvidia/jetson-orin-nano",),
        matches=("Orin",),
    ),
    "jetson-agx-orin": Preset(
        "cuda",
        _jetson(
            "jetson-agx-orin",
            "Jetson AGX Orin",
            multiprocessors=16,
            clock_ghz=1.3,
            l2=4 * MIB,
            bandwidth=204.8,
        ),
        _aarch64("cortex-a78", 12),
        422.4,
        "sm_87",
        tags=("nvidia/jetson-agx-orin-64gb",),
        matches=("Orin",),
    ),
    # Maxwell: CUDA 13 builds for sm_75 and newer, so that this preset serves analysis only.
    "jetson-nano": Preset(
        "cuda",
        _jetson(
            "jetson-nano",
            "Jetson Nano",
            multiprocessors=1,
            clock_ghz=0.9216,
            l2=256 * KIB,
            bandwidth=25.6,
            capability=(5, 3),
        ),
        _aarch64("cortex-a57", 4),
        45.8,
        "sm_53",
        tags=("nvidia/jetson-nano",),
    ),
    # Kepler, for the rules and for analysis too: the third board of ICPP'19.
    "jetson-tk1": Preset(
        "cuda",
        replace(
            _jetson(
                "jetson-tk1",
                "Jetson TK1",
                multiprocessors=1,
                clock_ghz=0.852,
                l2=128 * KIB,
                bandwidth=14.9,
                capability=(3, 2),
            ),
            alus=192,
            peak_gflops=327.2,
        ),
        None,  # its CPU is a 32-bit one, which there are no wheels for
        arch="sm_32",
    ),
}
"""By the name to write as a target."""


GENERIC_OPENCL = DeviceSpec(
    key="opencl/generic",
    kind="gpu",
    name="generic OpenCL device: none is here to ask",
    cores=4,
    wave=1,
    simd_bytes=16,
    max_work_group_size=256,
    local_memory=16 * KIB,
    local_memory_kind="dedicated",
    float64=False,
)
"""Properties that an embedded GPU of any vendor has."""

GENERIC_CUDA = DeviceSpec(
    key="cuda/generic",
    kind="gpu",
    name="generic CUDA device (sm_75): none is here to ask",
    cores=8,
    alus=64,
    wave=32,
    simd_bytes=16,
    unaligned_vectors=False,
    max_work_group_size=1024,
    registers=65536,
    local_memory=48 * KIB,
    local_memory_kind="dedicated",
    cache_line=128,
    float16=True,
    unified_memory=False,
    tensor_cores=TURING,
    dot_product="dp4a",
)
"""The oldest architecture that CUDA 13 builds for."""


def preset_by_device_name(name: str, cores: int = 0) -> Preset | None:
    """The preset of the device that a driver calls `name`: of several, the nearest in `cores`."""
    found = [p for p in PRESETS.values() if any(fragment in name for fragment in p.matches)]
    return min(found, key=lambda p: abs(p.spec.cores - cores) if cores else 0, default=None)
