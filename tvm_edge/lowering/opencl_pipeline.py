"""From scheduled kernels to OpenCL C: TVM's own passes, and ours between them."""

from __future__ import annotations

from tvm_edge.lowering.opencl_accesses import NameUnalignedStores
from tvm_edge.lowering.opencl_attributes import RequireWorkGroups
from tvm_edge.lowering.opencl_constants import ExactConstants
from tvm_edge.lowering.opencl_grids import LaunchLoops
from tvm_edge.lowering.opencl_vectors import LegalizeVectors
from tvm_edge.lowering.tvm_passes import lowering_passes, register_pipeline

__all__ = ["OPENCL", "PASSES", "register"]

OPENCL = "tvm_edge.opencl"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""

PASSES = lowering_passes(loops=(LaunchLoops(), LegalizeVectors()), kernels=(RequireWorkGroups(),))
"""Passes down to functions of the host and of the device, which are finished apart."""


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    # TVM's leave index expressions as the code generator writes them.
    register_pipeline(OPENCL, PASSES, NameUnalignedStores(), ExactConstants())
