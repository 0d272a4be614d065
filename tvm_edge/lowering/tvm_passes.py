"""TVM's passes from scheduled kernels to functions of a device, and where ours stand between them.

The same list for all devices, as TVM's own is.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes

from tvm_edge.lowering.argument_checks import DropArgumentChecks
from tvm_edge.lowering.byte_tables import ByteTables
from tvm_edge.lowering.check_lengths import CheckElements, CheckNarrowed
from tvm_edge.lowering.compact_buffers import CompactScheduled
from tvm_edge.lowering.cpu_functions import ExpandFunctions
from tvm_edge.lowering.empty_launches import GuardEmptyLaunches
from tvm_edge.lowering.launch_vectors import VectorsInLaunches
from tvm_edge.lowering.merge_launches import MergeLaunches
from tvm_edge.lowering.merge_loops import MergeLoops
from tvm_edge.lowering.outline_members import OutlineMembers
from tvm_edge.lowering.plain_divisions import PlainDivisions

__all__ = ["lowering_passes", "register_pipeline"]


def lowering_passes(
    *,
    types: Sequence[tvm.transform.Pass] = (),
    loops: Sequence[tvm.transform.Pass] = (),
    elements: Sequence[tvm.transform.Pass] = (),
    arrays: Sequence[tvm.transform.Pass] = (),
    kernels: Sequence[tvm.transform.Pass] = (),
) -> list[tvm.transform.Pass]:
    """The passes, in order.

    Parameters
    ----------
    types : sequence of Pass
        For arrays that are flat, before TVM has other types for those that it does not know.
    loops : sequence of Pass
        For loops whose remainders have been split off, before they become vectors.
    elements : sequence of Pass
        For unrolled loops, before indices they share get names.
    arrays : sequence of Pass
        For arrays of unrolled loops.
    kernels : sequence of Pass
        For functions of the device, just taken out of those of the host.
    """
    return [
        *_flat_arrays(),
        *types,
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        MergeLoops(),
        *loops,
        *_straight_code(),
        *elements,
        tirx.transform.CommonSubexprElim(),
        *arrays,
        *_launches(),
        tirx.transform.SplitHostDevice(),
        *kernels,
        tirx.transform.MakePackedAPI(),
        DropArgumentChecks(),
        CheckNarrowed(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


def _flat_arrays() -> list[tvm.transform.Pass]:
    """Blocks of a schedule to loops over arrays of one dimension."""
    return [
        OutlineMembers(),
        ExpandFunctions(),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        CompactScheduled(),
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
    ]


def _straight_code() -> list[tvm.transform.Pass]:
    """Loops to vectors and unrolled code, over arrays that share memory."""
    return [
        tirx.transform.VectorizeLoop(),
        ByteTables(),
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
    ]


def _launches() -> list[tvm.transform.Pass]:
    """Barriers and shared memory of work-items, and launches that share them."""
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        s_tir.transform.ThreadSync("shared"),
        s_tir.transform.ThreadSync("shared.dyn"),
        s_tir.transform.ThreadSync("warp"),
        s_tir.transform.InferFragment(),
        s_tir.transform.LowerThreadAllreduce(),
        MergeLaunches(),
        s_tir.transform.MergeSharedMemoryAllocations(),
        VectorsInLaunches(),
        GuardEmptyLaunches(),
        PlainDivisions(),
        CheckElements(),
    ]


def register_pipeline(
    name: str, passes: Sequence[tvm.transform.Pass], *last: tvm.transform.Pass
) -> None:
    """Let TVM know a pipeline by its name; more than once does no harm.

    Parameters
    ----------
    name : str
    passes : sequence of Pass
        Down to functions of the host and of the device.
    *last : Pass
        For functions of the device, after TVM's passes that finish them.
    """
    sequence = tvm.transform.Sequential(passes, name=name)
    tirx.compilation_pipeline.register_tir_pipeline(
        name,
        lambda: (
            sequence,
            finalize_host_passes,
            lambda: tvm.transform.Sequential([finalize_device_passes(), *last]),
        ),
    )
