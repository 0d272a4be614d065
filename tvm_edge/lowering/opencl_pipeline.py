"""From scheduled kernels to OpenCL C: TVM's own passes, and ours between them."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes

from tvm_edge.lowering.opencl_accesses import NameUnalignedStores
from tvm_edge.lowering.opencl_attributes import RequireWorkGroups
from tvm_edge.lowering.opencl_constants import ExactConstants
from tvm_edge.lowering.opencl_grids import LaunchLoops
from tvm_edge.lowering.opencl_vectors import LegalizeVectors
from tvm_edge.lowering.tvm_passes import lowering_passes

__all__ = ["OPENCL", "PASSES", "register"]

OPENCL = "tvm_edge.opencl"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""

PASSES = lowering_passes(loops=(LaunchLoops(), LegalizeVectors()), kernels=(RequireWorkGroups(),))
"""Passes down to functions of the host and of the device, which are finished apart."""


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    passes = tvm.transform.Sequential(PASSES, name="OpenCL")
    tirx.compilation_pipeline.register_tir_pipeline(
        OPENCL, lambda: (passes, finalize_host_passes, _finalize_device_passes)
    )


def _finalize_device_passes() -> tvm.transform.Pass:
    """TVM's, which leave index expressions as the code generator writes them, and ours."""
    own = (NameUnalignedStores(), ExactConstants())
    return tvm.transform.Sequential([finalize_device_passes(), *own])
