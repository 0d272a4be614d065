"""Kinds of target that tvm-edge compiles for: the facts that TVM's name of a kind decides.

A new kind is a module here and a line in :data:`GPU_KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.hardware.kinds.cpu import CpuKind
from tvm_edge.hardware.kinds.cuda import CudaKind
from tvm_edge.hardware.kinds.opencl import OpenCLKind
from tvm_edge.hardware.kinds.protocol import GpuKind, TargetKind

__all__ = ["GPU_KINDS", "KINDS", "GpuKind", "TargetKind"]

GPU_KINDS: Mapping[str, GpuKind] = {each.name: each for each in (CudaKind(), OpenCLKind())}
"""Kinds of GPU by TVM's name, in the order in which devices are listed."""

KINDS: Mapping[str, TargetKind] = {CpuKind.name: CpuKind(), **GPU_KINDS}
"""All kinds by TVM's name."""
