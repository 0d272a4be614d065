"""The memory of a compiled model in its report: weights, activations, workspace, programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relax

from tvm_edge.compiler.compilation import Compilation
from tvm_edge.memory.footprint import (
    launch_code,
    mapped,
    pinned,
    rounding,
    type_bytes,
    uploaded,
    weights_of_devices,
    windows,
    workspace,
)
from tvm_edge.memory.storage_plan import by_device, over_time, planned_storages
from tvm_edge.report import KernelInfo, MemoryInfo, ModelAlone, ModelPart, SplitInfo

__all__ = ["largest", "memory_of"]


def memory_of(
    c: Compilation,
    instructions: tvm.IRModule,
    items: Sequence[int],
    part: ModelPart | None,
    kernels: Sequence[KernelInfo],
    splits: Sequence[SplitInfo],
) -> MemoryInfo:
    """Return the bytes of a process that loads a model and runs it.

    Parameters
    ----------
    c : Compilation
    instructions : IRModule
        With the storage plan, without recorded launches.
    items : sequence of int
        Weights that are read.
    part : ModelPart or None
        One of several models; ``None`` for all.
    kernels : sequence of KernelInfo
        Launches of a run, in order.
    splits : sequence of SplitInfo
        Layers whose weights are streamed.
    """
    resolved = c.resolved
    own = [weight for item, weight in enumerate(c.weights) if item in items]
    weights = weights_of_devices(own, c.placed.kinds)
    storages = planned_storages(instructions)
    activations = by_device(instructions, storages)
    library = {kernel.name: kernel.device for kernel in kernels}
    programs, floor = launch_code(library.values(), resolved)
    room = windows(splits, resolved)
    on_gpu = [s.nbytes for s in storages.values() if s.device in ("", resolved.kind)]
    return MemoryInfo(
        weights=sum(weights.values()),
        activations=sum(activations.values()),
        by_device={} if len(activations) == 1 else activations,
        over_time=over_time(instructions, storages, [kernel.name for kernel in kernels]),
        workspace=workspace(c.scratch, resolved),
        inputs_outputs=_inputs_outputs(c, part),
        weights_by_device=dict(weights),
        mapped=mapped(weights, resolved),
        window=sum(room) + pinned(room, resolved),
        rounding=rounding([*uploaded(own, c.placed.kinds), *on_gpu, *room], resolved),
        programs=programs,
        floor=floor,
    )


def _inputs_outputs(c: Compilation, part: ModelPart | None) -> int:
    """Bytes of the inputs and results of a run, or of one of several models."""
    main = c.merged["main"]
    given = [param.ty for param in main.params[:-1]]
    returned = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    if part is not None:
        given = [given[position] for position in part.inputs]
        returned = [returned[position] for position in part.outputs]
    return sum(type_bytes(ty, c.largest) for ty in (*given, *returned))


def largest(memory: MemoryInfo, models: Sequence[ModelAlone]) -> MemoryInfo:
    """Return the memory of a run of all models, with the activations of any run that needs more.

    On each device by itself: a run of one model may need more than one of all, as the planner finds
    no least plan.
    """
    every = [memory, *(model.memory for model in models)]
    devices = {
        device: max(each.by_device.get(device, 0) for each in every) for device in memory.by_device
    }
    activations = max(sum(devices.values()), *(each.activations for each in every), 0)
    return replace(memory, activations=activations, by_device=devices)
