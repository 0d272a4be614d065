"""The compiler: one list of passes from operators to instructions.

::

    python -m tvm_edge.compiler.pipeline                           # the list
    python -m tvm_edge.compiler.pipeline zoo:mobilenet_v2 opencl   # what each pass does to a model

Variants are arguments of the list: a memory budget's plan, smaller work-groups, one of several
models, recorded launches. Each runs the passes that it concerns once more on its own
:class:`~tvm_edge.compiler.compilation.Compilation`.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import transform

from tvm_edge.compiler import describe
from tvm_edge.compiler.compilation import Compilation, ModelInstructions, begin
from tvm_edge.compiler.graph_passes import GRAPH, SMALLER_GROUPS
from tvm_edge.compiler.kernel_passes import KERNELS
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.passes import (
    SEVERAL,
    WHOLE_GROUPS,
    CompilerPass,
    Pipeline,
    on_module,
)
from tvm_edge.compiler.placement import Placed
from tvm_edge.frontend import ImportedModel
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.instructions.add_recordings import (
    with_recordings,
    with_recordings_by_shape,
)
from tvm_edge.relay_passes.instructions.add_stages import with_stages
from tvm_edge.relay_passes.instructions.announce_recordings import AnnounceRecordings
from tvm_edge.relay_passes.instructions.hoist_weights import HoistWeights
from tvm_edge.relay_passes.instructions.keep_region_results import KeepRegionResults
from tvm_edge.relay_passes.instructions.lower_copies import LowerCopies
from tvm_edge.relay_passes.instructions.mark_made_arguments import MarkMade
from tvm_edge.relay_passes.instructions.outline_loops import OutlineLoops
from tvm_edge.relay_passes.instructions.record_on_opencl import RecordOnOpenCL
from tvm_edge.relay_passes.instructions.separate_models import models_alone, with_models
from tvm_edge.relay_passes.instructions.write_on_host import WriteOnHost
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.ir.locations import calls_by_kernel
from tvm_edge.relay_passes.ir.loops import has_loops
from tvm_edge.relay_passes.memory.hoist_storage import HoistStorage
from tvm_edge.relay_passes.memory.plan_arena import PlanArena, input_lengths
from tvm_edge.relay_passes.memory.plan_memory import PlanMemory
from tvm_edge.relay_passes.memory.plan_parts import PlanParts
from tvm_edge.relay_passes.memory.result_memory import ResultMemory
from tvm_edge.relay_passes.memory.unaligned_inputs import with_unaligned
from tvm_edge.schedules.conv_config import ConvConfig

__all__ = ["PIPELINE", "in_smaller_groups", "instructions_of", "main"]

RECORDINGS = {
    "cuda": frozenset(("AnnounceRecordings",)),
    "opencl": frozenset(("HoistWeights", "RecordOnOpenCL")),
}
"""Kinds of devices whose drivers record launches, with the passes that only one of them needs."""

_ANY_GROUP = ("subgroup", "items")
"""Algorithms whose tiles hold in work-groups of any size."""


def in_smaller_groups(c: Compilation) -> Compilation | None:
    """Start of the same compilation in work-groups that every driver runs.

    The weights are those of `c`: measured tiles, which may be of larger groups, are dropped, but
    the algorithms stay, as weights are packed for them. ``None`` where nothing would be smaller.
    """
    start = c.before_layout
    if start is None:
        return None
    configs = {workload: _without_tile(each) for workload, each in start.choices.configs.items()}
    plan = start.layouts.plan
    if plan is not None:
        own = {number: _without_tile(config) for number, config in plan.configs.items()}
        plan = replace(plan, configs=own)
    spec = replace(start.resolved.spec, max_work_group_size=SMALLER_GROUPS)
    return replace(
        start,
        choices=replace(start.choices, configs=configs),
        layouts=replace(start.layouts, plan=plan),
        resolved=replace(start.resolved, spec=spec),
        work_group=SMALLER_GROUPS,
    )


def _without_tile(config: ConvConfig) -> ConvConfig:
    return config if config.algorithm in _ANY_GROUP else replace(config, knobs="")


def _several(c: Compilation) -> bool:
    return len(c.placed.kinds) > 1


def _plan_first(c: Compilation) -> tvm.transform.Pass:
    # TVM's planner gives storage of one device to tensors of another.
    several = _several(c)
    return PlanMemory([0], c.largest) if several or c.largest else transform.StaticPlanBlockMemory()


def _chooses(c: Compilation) -> bool:
    """Return whether ``main`` has an If."""
    return any(isinstance(binding.value, relax.If) for binding in bindings_of(c.module["main"]))


def _plan_others(c: Compilation) -> tvm.transform.Pass:
    return PlanMemory(range(1, len(c.placed.kinds)), c.largest)


def _instructions(c: Compilation, module: tvm.IRModule, **variant: Any) -> tvm.IRModule:
    """Lower another module, whose ``main`` is a variant of this one's, by the same passes."""
    part = PIPELINE.part("MarkMade", until="AddRecordings")
    return part.nested(replace(c, module=module, **variant)).module


def _add_recordings(c: Compilation) -> Compilation:
    add = with_recordings_by_shape if _is_open(c.merged) else with_recordings
    recorded = add(
        c.module, c.merged, lambda mod: _instructions(c, mod, recording=c.placed.kinds[0])
    )
    return replace(c, module=recorded)


def _is_open(mod: tvm.IRModule) -> bool:
    """Return whether inputs of ``main`` have open dimensions."""
    return bool(input_lengths(mod["main"]))


def _add_stages(c: Compilation) -> Compilation:
    staged = with_stages(c.module, c.merged, lambda mod: _instructions(c, mod), c.resolved.shared)
    return replace(c, module=staged)


def _add_models(c: Compilation) -> Compilation:
    models = tuple(_model_alone(c, alone) for alone in models_alone(c.lifted, c.imported.parts))
    module = with_models(c.module, [model.instructions for model in models])
    return replace(c, module=module, models=models)


def _model_alone(c: Compilation, alone: Any) -> ModelInstructions:
    apart = {number: kernel for number, kernel in c.kernels.items() if not kernel.members}
    launches = tuple(calls_by_kernel(alone.module))
    own = replace(
        c, module=alone.module, merged=alone.module, kernels=apart, launches=launches, groups=()
    )
    own = PIPELINE.part("FuseParallel", until="AddModels").nested(own)
    return ModelInstructions(
        alone.part, own.module, own.plain, own.kernels, own.launches, alone.weights
    )


def _add_unaligned(c: Compilation) -> Compilation:
    return replace(c, module=with_unaligned(c.module, c.unaligned))


def _describe(c: Compilation) -> Compilation:
    return replace(c, report=describe.report_of(c))


def _recorded(name: str) -> Any:
    """Make the condition that the device whose launches are recorded needs the pass `name`."""
    return lambda c: c.recording is not None and name in RECORDINGS[c.recording]


_RECORDING = (lambda c: c.recording is not None, "recorded launches")

INSTRUCTIONS = (
    # Dataflow becomes instructions of the virtual machine over planned storage.
    on_module("instructions", MarkMade()),
    on_module("instructions", lambda c: LowerCopies(c.resolved.shared), "LowerCopies").when(
        *SEVERAL
    ),
    on_module("instructions", transform.ToNonDataflow()),
    on_module("instructions", transform.RemovePurityChecking()),
    on_module("instructions", transform.CallTIRRewrite()),
    on_module("instructions", WriteOnHost()).when(
        lambda c: _several(c) and "write" in c.resolved.shared, "memory is shared"
    ),
    on_module("instructions", PlanArena())
    .made_optional()
    .when(
        lambda c: not (_several(c) or c.largest) and c.resolved.kind == "llvm",
        "one CPU, without a budget",
    ),
    on_module("instructions", PlanParts()).when(
        lambda c: c.recording is not None and _is_open(c.module), "recorded launches of open shapes"
    ),
    on_module("instructions", _plan_first, "PlanMemory"),
    on_module("instructions", HoistStorage()).when(
        lambda c: _chooses(c) and not _several(c), "an If, on one device"
    ),
    on_module("instructions", ResultMemory())
    .made_optional()
    .when(lambda c: not _several(c) and c.resolved.kind == "llvm", "one CPU"),
    on_module("instructions", HoistWeights()).when(
        _recorded("HoistWeights"), "recorded launches of OpenCL"
    ),
    on_module("instructions", transform.RewriteCUDAGraph()).when(*_RECORDING),
    on_module("instructions", KeepRegionResults()).when(*_RECORDING),
    on_module("instructions", AnnounceRecordings()).when(
        _recorded("AnnounceRecordings"), "recorded launches of CUDA"
    ),
    on_module("instructions", RecordOnOpenCL()).when(
        _recorded("RecordOnOpenCL"), "recorded launches of OpenCL"
    ),
    # After the pass that treats all planned storage as the first device's: kernels that read or
    # write another's tensors are then in no recorded region.
    on_module("instructions", _plan_others, "PlanMemoryOfOthers").when(*SEVERAL),
    on_module("instructions", transform.LowerAllocTensor()),
    on_module("instructions", OutlineLoops()).when(lambda c: has_loops(c.module["main"]), "loops"),
    on_module("instructions", transform.KillAfterLastUse()),
    on_module("instructions", transform.LowerRuntimeBuiltin()),
    on_module("instructions", transform.ComputePrimValue()),
    on_module("instructions", transform.VMShapeLower()),
    on_module("instructions", transform.AttachGlobalSymbol()),
    # Functions beside ``main``.
    CompilerPass("instructions", "KeepPlain", lambda c: replace(c, plain=c.module)).when(
        lambda c: c.recording is None, "main"
    ),
    CompilerPass("instructions", "AddRecordings", _add_recordings)
    .made_optional()
    .when(
        # Recordings of shapes have memory of their own beside that of other shapes.
        lambda c: (
            c.placed.kinds[0] in RECORDINGS and not has_loops(c.merged["main"]) and not c.largest
        ),
        "CUDA and OpenCL, without loops, without a budget for open shapes",
    ),
    CompilerPass("instructions", "AddStages", _add_stages).when(*SEVERAL),
    CompilerPass("instructions", "AddModels", _add_models).when(
        lambda c: len(c.imported.parts) > 1, "several models"
    ),
    CompilerPass("instructions", "AddUnaligned", _add_unaligned).when(*WHOLE_GROUPS),
    CompilerPass("report", "Describe", _describe).when(*WHOLE_GROUPS),
)
"""From kernels to instructions of the virtual machine, and the report."""

PIPELINE = Pipeline((*GRAPH, *KERNELS, *INSTRUCTIONS))
"""Every pass of a compilation, in order."""


def instructions_of(mod: tvm.IRModule, resolved: ResolvedTarget) -> tvm.IRModule:
    """Make instructions of scheduled kernels of one device.

    Parameters
    ----------
    mod : IRModule
        ``main`` calls the kernels, and takes the weights as its last parameter.
    resolved : ResolvedTarget
    """
    placed = Placed(mod, (resolved.kind,), (0,) * (len(mod["main"].params) - 1), {})
    imported = ImportedModel("kernels", mod, (), ())
    begun = Compilation(imported, resolved, Options(), module=mod, merged=mod, placed=placed)
    return PIPELINE.part("MarkMade", until="AddModels").run(begun).module


def main() -> None:
    """Print the list, or what each pass does to a model for a target."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `head` has read enough
    if len(sys.argv) != 3:
        print(PIPELINE)
        return
    before = begin(sys.argv[1], sys.argv[2], Options(tuning_logs=None))
    for each, after in PIPELINE.steps(before):
        count = len(after.module.functions)
        done = "" if after.module.same_as(before.module) else _changed(before.module, after.module)
        print(f"{each.phase:12} {each.name:24} {count:4} functions  {done}")
        before = after


def _changed(before: tvm.IRModule, after: tvm.IRModule) -> str:
    return "" if tvm_ffi.structural_equal(before, after) else "changed"


if __name__ == "__main__":
    main()
