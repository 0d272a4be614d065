"""Phases that go together wherever kernels are made and lowered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tvm

from tvm_edge.compiler import phases
from tvm_edge.compiler.recorded import RECORDING, lower_recorded
from tvm_edge.compiler.stages import with_stages
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.memory.concat_in_place import concat_in_place
from tvm_edge.relay_passes.memory.lift_weights import LiftWeights
from tvm_edge.relay_passes.memory.share_constants import ShareConstants

__all__ = ["fuse", "lift_weights", "lower"]


def fuse(grouped: tvm.IRModule, resolved: ResolvedTarget) -> tuple[tvm.IRModule, list[int]]:
    """One kernel for each group, and which calls of those are left."""
    fused = phases.arithmetic(resolved)(phases.FUSE(grouped))
    if resolved.spec.has_cpu_cores:  # concatenations are dealt with behind the schedules
        return fused, list(range(len(kernel_calls(fused))))
    return concat_in_place(fused, specialise=True)


def lift_weights(
    scheduled: tvm.IRModule,
) -> tuple[tvm.IRModule, list[tvm.runtime.Tensor], list[int]]:
    """Weights out of the code, those alike once: the module, the weights, the device of each."""
    # Passes, by decorators that type checkers cannot see through.
    lift: Any = LiftWeights()
    share: Any = ShareConstants()
    return lift(share(scheduled)), lift.weights, lift.devices


def lower(
    lifted: tvm.IRModule, kinds: Sequence[str], shared: Collection[str]
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Instructions with stages for streams of frames, and ``main`` without recorded launches."""
    if kinds[0] in RECORDING:
        lowered, plain = lower_recorded(lifted, kinds, shared)
    else:
        lowered = plain = phases.lower(len(kinds), shared=shared)(lifted)
    return with_stages(lowered, lifted, len(kinds), shared), plain
