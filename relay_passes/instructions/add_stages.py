"""The stages of a model on several devices, as functions beside ``main``.

Instructions of the virtual machine alone: the kernels are those that ``main`` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import tvm
from tvm import relax, tirx

from tvm_edge.relay_passes.instructions.split_stages import split_stages
from tvm_edge.runtime.entry import stage_name

__all__ = ["with_stages"]


def with_stages(
    lowered: tvm.IRModule,
    lifted: tvm.IRModule,
    lower: Callable[[tvm.IRModule], tvm.IRModule],
    shared: Collection[str],
) -> tvm.IRModule:
    """A lowered module with the stages of ``main``, if there are several, as functions.

    Parameters
    ----------
    lowered, lifted : IRModule
        Instructions of the virtual machine, and what they were made of.
    lower : callable
        Makes instructions of such a module, and records none of them.
    shared : collection of {"read", "write"}
        Accesses of the host to tensors of the device where they are.

    Returns
    -------
    IRModule
        Each stage is lowered as a ``main`` of its own, so its results, which are another stage's
        arguments, are not in storage that the next frame uses. What the driver would record is
        launched kernel by kernel: a recording names the tensors of one frame.
    """
    stages = split_stages(lifted, shared)
    # A tensor of w // 4 steps, alone, does not tell w: such a model is a stage by itself.
    if not stages or any(relax.analysis.free_symbolic_vars(s.function) for s in stages):
        return lowered
    lowered = lowered.clone()
    for number, stage in enumerate(stages):
        functions = dict(_kernels(lifted))
        known = {gvar.name_hint for gvar in functions}
        # Functions that compute shapes are named one after the other.
        functions.update((g, f) for g, f in _kernels(lowered) if g.name_hint not in known)
        functions[tvm.ir.GlobalVar("main")] = stage.function
        known = {gvar.name_hint for gvar in functions}
        alone = tvm.IRModule(functions, attrs=lifted.attrs, global_infos=lifted.global_infos)
        staged = lower(alone)
        for gvar, func in _kernels(staged):
            if gvar.name_hint not in known:
                lowered.update_func(gvar, func)
        name = stage_name(number, stage.device)
        func = staged["main"].with_attr("global_symbol", name)
        gvar = tvm.ir.GlobalVar(name)
        relax.expr._update_type(gvar, func.ty)
        lowered.update_func(gvar, func)
    return lowered


def _kernels(mod: tvm.IRModule) -> list[tuple[tvm.ir.GlobalVar, tirx.PrimFunc]]:
    return [(g, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
