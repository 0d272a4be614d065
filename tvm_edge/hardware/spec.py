"""DeviceSpec: the properties of a device that schedules read.

Schedules and passes read a :class:`DeviceSpec` and never ask a driver: the same choice comes out
with the device at hand, through cross-compilation, and in a test.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvm_edge.hardware.tensor_cores import TensorCores

__all__ = ["DeviceSpec"]


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """The properties of one CPU or GPU that decide how kernels are written for it.

    Sizes are bytes, counts are per device unless said otherwise. Zero means "unknown".

    Attributes
    ----------
    key : str
        ``vendor/architecture`` or ``vendor/device``; names the device in tuning records.
    kind : {"cpu", "gpu"}
        Way in which kernels run: as functions of the host's process with parallel loops, or as
        grids of work-groups that a driver launches.
    name : str
        The marketing or driver name, for people.
    cores : int
        Physical CPU cores, or compute units (Mali: shader cores, NVIDIA: multiprocessors, Intel:
        execution units).
    on_cpu : bool
        Whether a device of kind ``gpu`` is a CPU, as OpenCL has them. A core runs one work-group
        after another, and `simd_bytes`, `vector_registers` and the caches are a core's.
    alus : int
        Single-precision multiply-add lanes of one core; 0 on a CPU, whose `simd_bytes` say it.
    wave : int
        Work-items that execute in lockstep (warp, wavefront, sub-group); 1 on a CPU.
    sub_groups : tuple of int
        Numbers of work-items that may form a sub-group whose size a kernel requires, where the
        driver has Intel's block reads, block writes and shuffles (``cl_intel_subgroups``,
        ``cl_intel_required_subgroup_size``); empty elsewhere.
    simd_bytes : int
        Width of one vector register of a CPU core, or of a work-item's preferred vector.
    unaligned_vectors : bool
        Whether a work-item may read a vector of global memory from any element on, as OpenCL's
        ``vload`` does; CUDA wants it aligned.
    vector_registers : int
        Architectural vector registers of a CPU core (32 with AVX-512 and NEON, 16 with AVX2).
    max_work_group_size : int
        Work-items a work-group may hold; 1 on a CPU.
    registers : int
        32-bit registers per compute unit; 0 on a CPU.
    local_memory : int
        Bytes of local (shared) memory that a work-group may use.
    local_memory_kind : {"dedicated", "global", "none"}
        ``dedicated``: on the chip; ``global``: part of main memory, as on Mali, where staging
        data in it gains nothing; ``none``: a CPU.
    cache_line, l1_cache, l2_cache, l3_cache : int
        Caches. On a CPU L1 and L2 are per core and L3 per device; on a GPU L1 is per core and L2
        per device.
    peak_gflops : float
        Single-precision peak, fused multiply-add counted as two.
    bandwidth_gbs : float
        Memory bandwidth in 10**9 bytes per second.
    launch_us : float
        Cost of one more kernel after another, microseconds: small kernels merged or split are
        worth it or not by this. A GPU's driver does not say it; 4.5 is NVIDIA's OpenCL.
    copy_latency_us, copy_gbs : float
        Latency in microseconds and throughput in 10**9 bytes per second of a copy between the
        host's memory and the device's. The latency covers the host's wait for the device and its
        wake-up. A driver says neither: the defaults are NVIDIA's, from pageable memory.
    unified_memory : bool
        Whether the device shares its memory with the host.
    fine_grained_memory : bool
        Whether the host may write the device's memory at any time (OpenCL's fine-grained shared
        virtual memory), and not just map it to read.
    float16, float64 : bool
        Whether half-precision and double-precision arithmetic are native.
    float16_vectors : bool
        Of a CPU: whether one instruction converts a vector between float16 and float32 (x86: F16C
        or AVX-512, Arm: NEON).
    tensor_cores : TensorCores or None
        Of an NVIDIA GPU of compute capability 7.5 or newer, reached by CUDA.
    dot_product : str
        The instruction that adds four products of 8-bit numbers to an int32; empty where there is
        none, or the code has no way to it. Of a CPU one of ``vnni512``, ``vnni256``, ``sdot``,
        ``smmla`` for ``sdot`` beside products of small matrices, or ``smull`` for NEON's several
        without it, in each lane of a vector (:mod:`tvm_edge.schedules.cpu.dot_products`); of a GPU
        one of ``dp4a`` (CUDA), ``ptx_dp4a``, ``khr_dot``, ``arm_dot``, ``qcom_dot`` (OpenCL, see
        :mod:`tvm_edge.schedules.gpu.dot_products`).
    pair_product : {"", "vdpbf16ps", "bfdot"}
        Of a CPU: the instruction that adds two products of bfloat16 to each float32 of a vector,
        where it is faster than two multiply-adds.
    in_order : bool
        Of a CPU: whether instructions start in the order of the code (Cortex-A53, A55).
    byte_tables : bool
        Whether code looks up a vector of bytes in a table of 256 with a few instructions
        (:mod:`tvm_edge.lowering.byte_tables`).
    """

    key: str
    kind: Literal["cpu", "gpu"]
    name: str
    cores: int
    on_cpu: bool = False
    alus: int = 0
    wave: int = 1
    sub_groups: tuple[int, ...] = ()
    simd_bytes: int = 16
    unaligned_vectors: bool = True
    vector_registers: int = 16
    max_work_group_size: int = 1
    registers: int = 0
    local_memory: int = 0
    local_memory_kind: Literal["dedicated", "global", "none"] = "none"
    cache_line: int = 64
    l1_cache: int = 32 * 1024
    l2_cache: int = 0
    l3_cache: int = 0
    peak_gflops: float = 0.0
    bandwidth_gbs: float = 0.0
    launch_us: float = 4.5
    copy_latency_us: float = 15.0
    copy_gbs: float = 9.0
    unified_memory: bool = True
    fine_grained_memory: bool = False
    float16: bool = False
    float64: bool = True
    float16_vectors: bool = False
    tensor_cores: TensorCores | None = None
    dot_product: Literal[
        "",
        "vnni512",
        "vnni256",
        "smmla",
        "sdot",
        "smull",
        "dp4a",
        "ptx_dp4a",
        "khr_dot",
        "arm_dot",
        "qcom_dot",
    ] = ""
    pair_product: Literal["", "vdpbf16ps", "bfdot"] = ""
    in_order: bool = False
    byte_tables: bool = False

    @property
    def multiplies_by_element(self) -> bool:
        """Return whether a CPU multiplies a vector by an element of another, as NEON does."""
        return self.has_cpu_cores and self.simd_bytes == 16 and self.vector_registers == 32

    def lanes(self, dtype_bytes: int = 4) -> int:
        """Elements of `dtype_bytes` bytes in one vector register; at least 1."""
        return max(1, self.simd_bytes // dtype_bytes)

    @property
    def launches_grids(self) -> bool:
        """Return whether kernels are grids of work-groups that a driver launches, and not loops."""
        return self.kind == "gpu"

    @property
    def has_cpu_cores(self) -> bool:
        """Return whether it runs best tasks with a CPU's vectors and register tiles."""
        return self.on_cpu or not self.launches_grids

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary of every attribute."""
        return asdict(self)
