"""From scheduled kernels to OpenCL C: TVM's own passes, and ours between them."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes

from tvm_edge.lowering.opencl_accesses import NameUnalignedStores
from tvm_edge.lowering.opencl_attributes import RequireWorkGroups
from tvm_edge.lowering.opencl_grids import LaunchLoops
from tvm_edge.lowering.opencl_vectors import LegalizeVectors

__all__ = ["OPENCL", "register"]

OPENCL = "tvm_edge.opencl"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""

_PASSES = (
    s_tir.transform.CanonicalizeLoop(),
    s_tir.transform.LowerCrossThreadReduction(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LiftThreadBinding(),
    s_tir.transform.ManifestSharedMemoryLocalStage(),
    s_tir.transform.CompactBufferAllocation(),
    s_tir.transform.LowerAutoCopy(),
    s_tir.transform.UnifyThreadBinding(),
    s_tir.transform.LowerMatchBuffer(),
    s_tir.transform.StmtSimplify(),
    s_tir.transform.InjectPermutedLayout(),
    s_tir.transform.AnnotateIrregularLoop(),
    s_tir.transform.InjectSoftwarePipeline(),
    s_tir.transform.TransformMmaBufferLayout(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    tirx.transform.BF16ComputeLegalize(),
    tirx.transform.NarrowDataType(32),
    s_tir.transform.LoopPartition(),
    LaunchLoops(),
    LegalizeVectors(),
    tirx.transform.VectorizeLoop(),
    s_tir.transform.InjectVirtualThread(),
    s_tir.transform.InjectDoubleBuffer(),
    tirx.transform.StorageRewrite(),
    s_tir.transform.HoistIfThenElse(),
    tirx.transform.UnrollLoop(),
    s_tir.transform.RenormalizeSplitPattern(),
    tirx.transform.StmtSimplify(),
    tirx.transform.RemoveNoOp(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.CommonSubexprElim(),
    tirx.transform.FP8ComputeLegalize(),
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    s_tir.transform.ThreadSync("shared"),
    s_tir.transform.ThreadSync("shared.dyn"),
    s_tir.transform.ThreadSync("warp"),
    s_tir.transform.InferFragment(),
    s_tir.transform.LowerThreadAllreduce(),
    s_tir.transform.MergeSharedMemoryAllocations(),
    tirx.transform.SplitHostDevice(),
    RequireWorkGroups(),
    tirx.transform.MakePackedAPI(),
    tirx.transform.FP8StorageLegalize(),
    tirx.transform.BF16StorageLegalize(),
)


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    passes = tvm.transform.Sequential(list(_PASSES), name="OpenCL")
    tirx.compilation_pipeline.register_tir_pipeline(
        OPENCL, lambda: (passes, finalize_host_passes, _finalize_device_passes)
    )


def _finalize_device_passes() -> tvm.transform.Pass:
    """TVM's, which leave index expressions as the code generator writes them, and ours."""
    return tvm.transform.Sequential([finalize_device_passes(), NameUnalignedStores()])
