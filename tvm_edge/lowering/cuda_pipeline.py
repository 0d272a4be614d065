"""From scheduled kernels to CUDA C: TVM's own passes, and what its generator needs."""

from __future__ import annotations

from tvm_edge.lowering.cuda_casts import NameConvertedVectors
from tvm_edge.lowering.dependent_launches import DependentLaunches
from tvm_edge.lowering.tvm_passes import lowering_passes, register_pipeline

__all__ = ["CUDA", "PASSES", "register"]

CUDA = "tvm_edge.cuda"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""

PASSES = lowering_passes(kernels=(DependentLaunches(),))
"""Passes down to functions of the host and of the device, which are finished apart."""


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    register_pipeline(CUDA, PASSES, NameConvertedVectors())
