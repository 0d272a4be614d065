"""The phases of a compilation, in order, each a named list of passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tvm
from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from tvm_edge.compiler.pipeline import Pipeline
from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.relay_passes.instructions.announce_recordings import AnnounceRecordings
from tvm_edge.relay_passes.instructions.hoist_weights import HoistWeights
from tvm_edge.relay_passes.instructions.keep_region_results import KeepRegionResults
from tvm_edge.relay_passes.instructions.lower_copies import LowerCopies
from tvm_edge.relay_passes.instructions.mark_made_arguments import MarkMade
from tvm_edge.relay_passes.instructions.record_on_opencl import RecordOnOpenCL
from tvm_edge.relay_passes.instructions.write_on_host import WriteOnHost
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.relay_passes.layout.pack_matrices import PackMatrices
from tvm_edge.relay_passes.lower.fuse_tir import FuseTIR
from tvm_edge.relay_passes.lower.launch_grids import LaunchGrids
from tvm_edge.relay_passes.lower.legalize import legalize_ops
from tvm_edge.relay_passes.lower.lower_operators import LowerOperators
from tvm_edge.relay_passes.lower.spread_vdevices import SpreadVDevices
from tvm_edge.relay_passes.memory.add_workspace import AddWorkspace
from tvm_edge.relay_passes.memory.plan_memory import PlanMemory
from tvm_edge.relay_passes.memory.reuse_in_place import ReuseInPlace
from tvm_edge.relay_passes.memory.stream_weights import StreamWeights
from tvm_edge.relay_passes.place.verify_placement import VerifyPlacement
from tvm_edge.relay_passes.precision.calculate_in_float32 import CalculateInFloat32
from tvm_edge.relay_passes.quantize.quantize import Quantize
from tvm_edge.relay_passes.simplify.fold_affine import FoldAffine
from tvm_edge.relay_passes.simplify.fold_constant_views import FoldConstantViews
from tvm_edge.relay_passes.simplify.fold_dequantized import FoldDequantized
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = [
    "FUSE",
    "GROUP",
    "IN_PLACE",
    "SIMPLIFY",
    "WORKSPACE",
    "arithmetic",
    "layout",
    "legalize",
    "lower",
    "quantize",
    "stream",
]

SIMPLIFY = Pipeline(
    "simplify",
    (
        FoldDequantized(),
        FoldConstantViews(),
        transform.CanonicalizeBindings(),
        FoldAffine(),
        # Dead batch normalisations would be decomposed, and then folded kernel by kernel.
        transform.DeadCodeElimination(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.EliminateCommonSubexpr(),
        transform.FoldConstant(),
        transform.DeadCodeElimination(),
    ),
)
"""Operators stay operators; constants are folded, batch normalisation is gone."""


def quantize(spec: DeviceSpec) -> Pipeline:
    """Quantised tensors are calculated with as they are; before constants are folded.

    `spec` is the device that is compiled for.
    """
    return Pipeline("quantize", (Quantize(spec),))


def layout(
    spec: DeviceSpec,
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
    plan: LayoutPlan | None = None,
) -> Pipeline:
    """Images in blocks and matrices in panels where kernels run on the cores of a CPU.

    On other devices images in the blocks of `plan`, which was chosen for the whole of the network.
    `configs` are algorithms and knobs of convolutions that were measured.
    """
    passes: tuple[tvm.transform.Pass, ...] = ()
    if spec.has_cpu_cores:
        passes = (BlockLayout(spec, configs, plan), PackMatrices(spec))
    elif plan is not None:
        passes = (BlockLayout(spec, configs, plan),)
    return Pipeline("layout", passes)


def legalize(
    resolved: ResolvedTarget,
    precision: str = "float32",
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
    chooser: DeviceSpec | None = None,
) -> Pipeline:
    """Operators become calls of kernels (PrimFuncs), some of them written for the device.

    `configs` are algorithms and knobs of convolutions on a GPU that were measured, `chooser` what
    others are chosen for, where it is not the target's device.
    """
    return Pipeline(
        "legalize",
        (
            LowerOperators(resolved, precision, configs, chooser),
            DispatchSampling(),
            DispatchSortScan(),
            legalize_ops(),
            SpreadVDevices(),
            transform.AnnotateTIROpPattern(),
            transform.FoldConstant(),
            # Before fusion: a reshape is a view and costs nothing, inside a kernel it would copy.
            transform.RewriteDataflowReshape(),
            transform.DeadCodeElimination(),
        ),
    )


GROUP = Pipeline(
    "group",
    (
        transform.FuseOps(),
        # Results that only a tuple reads, of which nobody reads that field.
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
    ),
)
"""Element-wise tails are grouped with the kernel in front of them."""

FUSE = Pipeline("fuse", (FuseTIR(), transform.DeadCodeElimination(), VerifyPlacement()))
"""Each group becomes one kernel."""


def arithmetic(resolved: ResolvedTarget) -> Pipeline:
    """Kernels of float16 tensors calculate in float32, which most CPUs do anyway, an operation at a
    time.
    """
    return Pipeline("arithmetic", (CalculateInFloat32(resolved.kind),))


IN_PLACE = Pipeline("in-place", (ReuseInPlace(), transform.DeadCodeElimination()))
"""Scheduled kernels overwrite operands that nobody needs any more.

Kernels whose every call is in place now, here or in a concatenation, would else be built, and be in
memory, with those that run.
"""

WORKSPACE = Pipeline("workspace", (LaunchGrids(), AddWorkspace()))
"""Scheduled kernels get the room that they asked for."""


def stream(kind: str) -> Pipeline:
    """Scheduled kernels read streamed weights as the runtime hands them out.

    `kind` is the target's, for a module on one device.
    """
    return Pipeline("stream", (StreamWeights(kind),))


_INSTRUCTIONS = (
    transform.LowerAllocTensor(),
    transform.KillAfterLastUse(),
    transform.LowerRuntimeBuiltin(),
    transform.ComputePrimValue(),
    transform.VMShapeLower(),
    transform.AttachGlobalSymbol(),
)

_RECORD = (transform.RewriteCUDAGraph(), KeepRegionResults())
_RECORDINGS: Mapping[str | None, tuple[tvm.transform.Pass, ...]] = {
    None: (),
    "cuda": (*_RECORD, AnnounceRecordings()),
    "opencl": (HoistWeights(), *_RECORD, RecordOnOpenCL()),
}


def lower(devices: int = 1, recording: str | None = None, shared: Collection[str] = ()) -> Pipeline:
    """Dataflow becomes virtual-machine instructions over planned storage.

    `devices` is the number of virtual devices. With a `recording`, which is the kind of the first
    of them, its static regions are recorded: as CUDA graphs, or by the OpenCL runtime where the
    driver can. What the CPU may do with tensors of the GPU's where they are, ``read`` and
    ``write``, is in `shared`.
    """
    several = devices > 1
    return Pipeline(
        "lower",
        (
            MarkMade(),
            *((LowerCopies(shared),) if several else ()),
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            *((WriteOnHost(),) if several and "write" in shared else ()),
            # TVM's planner gives storage of one device to tensors of another.
            PlanMemory([0]) if several else transform.StaticPlanBlockMemory(),
            *_RECORDINGS[recording],
            # Behind what takes all planned storage for the first device's: what reads or writes
            # another's tensors is then in no region.
            *((PlanMemory(range(1, devices)),) if several else ()),
            *_INSTRUCTIONS,
        ),
    )
