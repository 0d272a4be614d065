"""A GPU that works while the host waits for something else of it.

Kernels of the CPU and waits for the GPU stop the host; kernels of the GPU are enqueued at once.
What does not need the CPU's results is therefore enqueued first, and a tensor that the CPU reads is
waited for by itself: its read begins behind the kernel that makes it, and ends in front of the
CPU's first kernel that needs it, while the GPU goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Lives, reached
from tvm_edge.relay_passes.ir.copy_functions import FINISH_READ, START_READ
from tvm_edge.relay_passes.ir.expressions import (
    KERNEL_CALLS,
    bindings_of,
    is_call,
    with_bindings,
    with_blocks,
)
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of

__all__ = ["gpu_work_first", "late_reads", "split_reads"]


_NO_WORK = (
    "relax.to_vdevice",
    "relax.reshape",
    "relax.expand_dims",
    "relax.squeeze",
    "relax.flatten",
)


def gpu_work_first(mod: tvm.IRModule) -> tvm.IRModule:
    """Put what can be enqueued in front of what the CPU computes, otherwise in the same order.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators in ``main``, nothing written in place, and crossings
        ``to_vdevice``. Each goes right behind what it copies.
    """
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    cpu = vdevices_of(mod)[1]
    if not main.is_pure:
        return mod
    blocks = [type(b)(_ordered(list(b.bindings), cpu)) for b in main.body.blocks]
    mod = mod.clone()
    mod[gvar] = with_blocks(main, blocks)
    return mod


def _ordered(bindings: list[relax.Binding], cpu: relax.VDevice) -> list[relax.Binding]:
    import networkx as nx

    places = {binding.var: position for position, binding in enumerate(bindings)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(bindings)))
    wall = -1  # nothing passes it
    keys = []
    for position, binding in enumerate(bindings):
        used = [places[v] for v in relax.analysis.free_vars(binding.value) if v in places]
        graph.add_edges_from((place, position) for place in used)
        if wall >= 0:
            graph.add_edge(wall, position)
        # A cast gives symbolic lengths their names, which types of what follows may use.
        if isinstance(binding, relax.MatchCast):
            graph.add_edges_from((place, position) for place in range(position))
            wall = position
        keys.append((_stops_host(binding, cpu), _wanted(binding, position, used), position))
    order = nx.lexicographical_topological_sort(graph, key=keys.__getitem__)
    return [bindings[position] for position in order]


def _stops_host(binding: relax.Binding, cpu: relax.VDevice) -> bool:
    if not isinstance(binding.value, relax.Call) or is_call(binding.value, *_NO_WORK):
        return isinstance(binding.value, relax.If)
    device = vdevice_of(binding.var.ty)
    return device is not None and is_same(device, cpu)


def _wanted(binding: relax.Binding, position: int, used: list[int]) -> int:
    """The place in the order that a binding would like: a crossing's, that of what it copies."""
    if is_call(binding.value, "relax.to_vdevice"):
        return max(used, default=-1)
    return position


def late_reads(mod: tvm.IRModule) -> dict[relax.Var, int]:
    """The reads of the GPU's tensors that it can work beside.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators are kernels, and crossings ``to_vdevice``.

    Returns
    -------
    dict of Var to int
        For the variable of a crossing the position of the first binding that needs it, if kernels
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
