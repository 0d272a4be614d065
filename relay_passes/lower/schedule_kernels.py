"""Give every kernel of a module its schedule."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.schedules import cpu, gpu, grid
from tvm_edge.schedules.base import PRECISION, Scheduled
from tvm_edge.schedules.cpu.float16_partial_sums import IN_FLOAT16

__all__ = ["KernelSchedule", "schedule_kernels"]


@dataclass(frozen=True)
class KernelSchedule:
    """The rule that scheduled a kernel, the source of its knobs, and the kind of its device.

    And whether it adds products up in float16.
    """

    rule: str
    origin: str
    device: str
    in_float16: bool = False


def schedule_kernels(
    mod: tvm.IRModule, resolved: ResolvedTarget, precision: str = "float32"
) -> tuple[tvm.IRModule, dict[str, KernelSchedule]]:
    """Schedule every PrimFunc of `mod` for the device that its target names.

    A kernel without a target is for the first device, the one compiled for; `precision` is of
    that one's kernels.

    Returns
    -------
    tvm.IRModule
        With scheduled kernels.
    dict of str to KernelSchedule
        By function name.
    """
    if precision == "float16" and resolved.kind == "cuda":
        # CUDA C has no vectors of float16 with operators: one product at a time is slower than
        # float32's fused multiply-add, and tensor cores add up in float32 as well.
        precision = "mixed"
    schedules = {}
    updated = mod.clone()
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        own = func.attrs.get("target") if func.attrs is not None else None
        on_host = own is not None and own.kind.name != resolved.kind
        place = resolved.cpu if on_host else resolved
        if precision != "float32" and not on_host and not _has_precision(func):
            func = func.with_attr(PRECISION, precision)
        done = _schedule(func, place.spec)
        # TVM's schedules call each "main", and what has a name is taken to be called from outside.
        updated.update_func(gvar, done.func.without_attr("global_symbol"))
        schedules[gvar.name_hint] = KernelSchedule(
            done.rule, done.origin, place.kind, IN_FLOAT16 in (done.func.attrs or {})
        )
    return updated, schedules


def _has_precision(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and PRECISION in func.attrs


def _schedule(func: tirx.PrimFunc, spec: DeviceSpec) -> Scheduled:
    if not spec.launches_grids:
        return cpu.schedule(func, spec)
    return (grid if spec.on_cpu else gpu).schedule(func, spec)
