"""Give every kernel of a module its schedule."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules import cpu
from tvm_edge.schedules.base import apply_first

__all__ = ["KernelSchedule", "schedule_kernels"]

_RULES = {"cpu": cpu.RULES}


@dataclass(frozen=True)
class KernelSchedule:
    """Which rule scheduled a kernel, and where its knobs came from."""

    rule: str
    origin: str


def schedule_kernels(
    mod: tvm.IRModule, spec: DeviceSpec
) -> tuple[tvm.IRModule, dict[str, KernelSchedule]]:
    """Schedule every PrimFunc of `mod`.

    Returns
    -------
    tvm.IRModule
        With scheduled kernels.
    dict of str to KernelSchedule
        By function name.
    """
    schedules = {}
    updated = mod.clone()
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        done = apply_first(_RULES[spec.kind], func, spec)
        if done is None:  # the last rule takes everything: a kernel without a schedule is a bug
            raise RuntimeError(f"no schedule rule takes the kernel {gvar.name_hint}")
        updated.update_func(gvar, done.func)
        schedules[gvar.name_hint] = KernelSchedule(done.rule, done.origin)
    return updated, schedules
