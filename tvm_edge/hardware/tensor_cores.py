"""Tensor cores of NVIDIA's GPUs: what they multiply, and what their kernels have of a core."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AMPERE", "TURING", "TensorCores", "tensor_cores_since"]


@dataclass(frozen=True, kw_only=True)
class TensorCores:
    """Tensor cores of a multiprocessor, and limits of the work-groups that feed them.

    Attributes
    ----------
    dtypes : tuple of str
        Types of the operands: ``float32`` is rounded to tf32.
    async_copies : bool
        Whether ``cp.async`` copies to local memory without registers.
    local_memory, core_memory : int
        Bytes of local memory that a work-group may ask for, and that a core has.
    resident : int
        Work-items that a core has at once.
    """

    dtypes: tuple[str, ...]
    async_copies: bool
    local_memory: int
    core_memory: int
    resident: int


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Of 8.0 and newer
# the least local memory of a work-group, and that of an Orin's core, which an H100 has more of.
TURING = TensorCores(
    dtypes=("float16", "int8"),
    async_copies=False,
    local_memory=64 << 10,
    core_memory=64 << 10,
    resident=1024,
)
AMPERE = TensorCores(
    dtypes=("float16", "int8", "float32"),
    async_copies=True,
    local_memory=99 << 10,
    core_memory=163 << 10,
    resident=2048,
)


def tensor_cores_since(capability: tuple[int, int]) -> TensorCores | None:
    """Return those of a compute capability; ``None`` if none have our kernels' instructions."""
    if capability >= (8, 0):
        return AMPERE
    return TURING if capability >= (7, 5) else None
