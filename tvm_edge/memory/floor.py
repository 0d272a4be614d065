"""Memory of a process that loads a model of no size, and what each kernel adds to it.

Measured by ``python -m benchmarks run memory --floor`` as the anonymous and shared memory of a
process on TVM's runtime tier, and what it has of a GPU's own memory: Python 3.11 on x86-64, glibc
2.36. They are constants, so that a plan does not depend on what else the compiling machine does.
CUDA's are an H200's, driver 580 (593 MiB, 526 of them on the device, and 89 KiB a kernel); of
OpenCL GPUs with a driver of their own none was measured yet: those are guesses on the safe side.
Where PyTorch is installed, tvm_ffi imports it, and a process has some 140 MiB more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_edge.hardware import ResolvedTarget

__all__ = ["Floor", "floor_of"]

_MIB = 1 << 20


@dataclass(frozen=True)
class Floor:
    """Bytes of a process, and of a kernel in it.

    Attributes
    ----------
    process : int
        Python, NumPy, TVM's runtime tier, threads; a GPU's driver and its context.
    kernel : int
        Code of a kernel and what describes it, on the CPU.
    device_kernel : int
        Code of a kernel of the GPU, as its driver built it.
    """

    process: int
    kernel: int
    device_kernel: int = 0


_CPU = Floor(51 * _MIB, 32 << 10)
_GPUS = {
    # CUDA's context is most of it, on the device.
    "cuda": Floor(600 * _MIB, 32 << 10, 64 << 10),
    "opencl": Floor(66 * _MIB, 32 << 10, 64 << 10),
}
# pocl: kernels that come from the artifact or the cache of programs. Their memory goes by the
# length of their OpenCL C, some 10 bytes each: its text is there as code, as sources and as the key
# of their binary, and pocl has the LLVM module that it made of it. How long it is no one knows
# before code is generated; but a kernel is 55 KiB of it (44 to 90), on the mean of squeezenet1_0,
# mobilenet_v2 and yolov1_small, whose 97 have 57 MiB: 602 KiB each (501 to 804). googlenet, which
# is not among them, has 62 at 540. Building them needs another 100 to 250 MiB, which LLVM gives
# back, and the first launch of each on a machine, when pocl compiles it once more for its
# work-groups, another 25 to 40.
_OPENCL_ON_CPU = Floor(64 * _MIB, 32 << 10, 576 << 10)


def floor_of(resolved: ResolvedTarget) -> Floor:
    """Return the floor for a target."""
    if resolved.host is None:
        return _CPU
    if resolved.spec.on_cpu:
        return _OPENCL_ON_CPU
    return _GPUS[resolved.kind]
