"""Reads of device tensors in two halves, so that the device works while the host waits.

A tensor that the host reads is waited for by itself: its read begins after the kernel that makes it
and ends before the host's first kernel that needs it, while the device goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Lives, reached
from tvm_edge.relay_passes.ir.copy_functions import FINISH_READ, START_READ
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, bindings_of, is_call, with_bindings
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of

__all__ = ["late_reads", "split_reads"]


def late_reads(mod: tvm.IRModule) -> dict[relax.Var, int]:
    """Return the reads of device tensors that the device can work beside.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators are kernels, and copies ``to_vdevice``.

    Returns
    -------
    dict of Var to int
        For the variable of a copy the position of the first binding that needs it, if kernels
        of the GPU are enqueued between both.
    """
    gpu = vdevices_of(mod)[0]
    lives = Lives(mod["main"])
    if any(isinstance(binding.value, relax.If) for binding in lives.bindings):
        return {}  # what branches read, write and result in is not looked at
    enqueued = [
        position
        for position, binding in enumerate(lives.bindings)
        if is_call(binding.value, *KERNEL_CALLS) and is_same(vdevice_of(binding.var.ty) or gpu, gpu)
    ]
    first: dict[relax.Var, int] = {}
    for position, binding in enumerate(lives.bindings):
        for var in relax.analysis.free_vars(binding.value):
            first.setdefault(var, position)
    found = {}
    for position, binding in enumerate(lives.bindings):
        var, value = binding.var, binding.value
        if not is_call(value, "relax.to_vdevice") or is_same(vdevice_of(value.ty) or gpu, gpu):
            continue
        sources = reached(value.args[0], lives.held)
        changes = max((lives.overwritten.get(each, -1) for each in {var, *sources}), default=-1)
        if not sources or var in lives.results or changes > position or var not in first:
            continue
        if any(position < each < first[var] for each in enqueued):
            found[var] = first[var]
    return found


def split_reads(mod: tvm.IRModule) -> tvm.IRModule:
    """Begin the reads of :func:`late_reads` where they stand and end them where they are needed."""
    late = late_reads(mod)
    if not late:
        return mod
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    builder = relax.BlockBuilder()
    started: dict[relax.Var, relax.Var] = {}
    due: dict[relax.Var, list[relax.Var]] = {}
    bindings = bindings_of(main)
    for var, position in late.items():
        due.setdefault(bindings[position].var, []).append(var)

    def call(name: str, argument: relax.Expr, ty: relax.Type) -> relax.Expr:
        return builder.normalize(relax.op.call_pure_packed(name, argument, ty_args=ty))

    def split(binding: relax.Binding) -> Iterator[relax.Binding]:
        for var in due.get(binding.var, ()):
            yield relax.VarBinding(var, call(FINISH_READ, started[var], var.ty))
        if binding.var not in late:
            yield binding
            return
        value = call(START_READ, binding.value.args[0], relax.ObjectType())
        started[binding.var] = type(binding.var)(f"{binding.var.name}_read", value.ty)
        yield relax.VarBinding(started[binding.var], value)

    mod = mod.clone()
    mod[gvar] = with_bindings(main, split)
    return mod
