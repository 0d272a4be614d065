"""Order the bindings of two devices so that the GPU works while the host waits.

Kernels of the CPU and waits for the GPU stop the host; kernels of the GPU are enqueued at once.
Whatever does not need the CPU's results is therefore enqueued first.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.extras import require
from tvm_edge.relay_passes.ir.expressions import (
    is_call,
    with_blocks,
)
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of

__all__ = ["gpu_work_first"]


_NO_WORK = (
    "relax.to_vdevice",
    "relax.reshape",
    "relax.expand_dims",
    "relax.squeeze",
    "relax.flatten",
)


def gpu_work_first(mod: tvm.IRModule) -> tvm.IRModule:
    """Move work that can be enqueued before work of the CPU, otherwise in the same order.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators in ``main``, nothing written in place, and copies ``to_vdevice``.
        Each goes right after what it copies.
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
    networkx = require("networkx", "onnx", "to overlap copies between devices")

    places = {binding.var: position for position, binding in enumerate(bindings)}
    graph = networkx.DiGraph()
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
    order = networkx.lexicographical_topological_sort(graph, key=keys.__getitem__)
    return [bindings[position] for position in order]


def _stops_host(binding: relax.Binding, cpu: relax.VDevice) -> bool:
    if not isinstance(binding.value, relax.Call) or is_call(binding.value, *_NO_WORK):
        return isinstance(binding.value, relax.If)
    device = vdevice_of(binding.var.ty)
    return device is not None and is_same(device, cpu)


def _wanted(binding: relax.Binding, position: int, used: list[int]) -> int:
    """The place in the order that a binding would like; for a copy, that of what it copies."""
    if is_call(binding.value, "relax.to_vdevice"):
        return max(used, default=-1)
    return position
