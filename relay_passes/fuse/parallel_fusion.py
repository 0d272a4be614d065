"""Kernels that do not depend on each other as one launch (EMDL'21).

Runs on scheduled kernels, after the passes that put results in the place of others and before the
memory planner. The results of members are then alive together, and never in one storage.

Branches of a concatenation write different parts of one tensor, each into the state that the one
before has left (:mod:`tvm_edge.relay_passes.memory.concat_in_place`). They are independent all the
same. They write into one parameter of the merged kernel, and the first kernel allocates the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Span

from tvm_edge.extras import require
from tvm_edge.hardware import DeviceSpec
from tvm_edge.lowering.merge_launches import SPREAD
from tvm_edge.lowering.parallel_members import compose
from tvm_edge.relay_passes.fuse.kernel_graph import KernelCall, KernelGraph, Measured
from tvm_edge.relay_passes.ir.aliases import Lives
from tvm_edge.relay_passes.ir.dependences import AREAS, area_of
from tvm_edge.relay_passes.ir.expressions import (
    KERNEL_CALLS,
    all_bindings,
    bindings_of,
    is_call,
    unused_name,
    with_blocks,
)
from tvm_edge.relay_passes.ir.locations import at_kernel, calls_by_kernel
from tvm_edge.schedules.launch_time import spread_over
from tvm_edge.schedules.parallel_policy import Group, choose_groups

__all__ = ["Measured", "ParallelFusion", "fuse_parallel", "merged_kernels"]

_LONGEST_NAME = 64


@dataclass(frozen=True)
class ParallelFusion:
    """A module whose independent kernels are merged.

    Attributes
    ----------
    module : tvm.IRModule
    merged : dict of int to tuple of int
        By number of each merged kernel its members' numbers.
    groups : list of Group
        What was merged, and what was not and why; members are numbers of kernels.
    """

    module: tvm.IRModule
    merged: dict[int, tuple[int, ...]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)


def fuse_parallel(
    mod: tvm.IRModule,
    spec: DeviceSpec,
    target: tvm.target.Target,
    *,
    every: bool = False,
    measured: Measured = lambda _: None,
) -> ParallelFusion:
    """Merge independent kernels of the first device.

    Parameters
    ----------
    mod : IRModule
        Operators in ``main`` are calls of scheduled kernels, numbered, workspace among their
        results.
    spec : DeviceSpec
        The first device.
    target : Target
        What it is compiled for, with its host.
    every : bool
        Merge whatever can be, not only what is predicted to gain.
    measured : callable
        Given the launches of each of some kernels, how many times faster a measurement says that
        they are as one; ``None`` where there is none.
    """
    main = mod["main"]
    bindings = bindings_of(main)
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return ParallelFusion(mod)  # what branches read and write is not looked at
    lives = Lives(main)
    made: list[relax.BindingBlock] = []
    groups: list[Group] = []
    merged: dict[int, tuple[int, ...]] = {}
    kernels = _Kernels(mod, {var.name_hint for var in mod.get_global_vars()})
    fresh = count(max(calls_by_kernel(mod), default=-1) + 1)
    for block in main.body.blocks:
        graph = KernelGraph(mod, list(block.bindings), lives)
        chosen: list[Group] = []
        if isinstance(block, relax.DataflowBlock):
            chosen = choose_groups(graph.problem(spec, measured), every=every)
            if every:
                # The policy takes launches of known size, which templates wrote. To lower each
                # group once more would cost a tenth of the time of a compilation.
                chosen = [graph.checked(group, target) for group in chosen]
        taken = [group.members for group in chosen if group.taken]
        if taken:
            writer = _Writer(graph, kernels, spec, taken, fresh)
            block = relax.DataflowBlock(writer.written())
            merged |= writer.merged
        made.append(block)
        groups += [replace(group, members=graph.numbers_of(group.members)) for group in chosen]
    if not kernels.made:
        return ParallelFusion(mod, merged, groups)
    return ParallelFusion(_with_kernels(mod, with_blocks(main, made), kernels), merged, groups)


def merged_kernels(
    mod: tvm.IRModule, spec: DeviceSpec, groups: Sequence[Sequence[int]]
) -> tvm.IRModule:
    """A module some of whose kernels become one.

    Parameters
    ----------
    mod : IRModule
        ``main`` is one block whose kernels are independent.
    spec : DeviceSpec
        The device of all.
    groups : sequence of sequence of int
        Calls of kernels, each group in the order of their work-groups in the launch.
    """
    if not groups:
        return mod
    main = mod["main"]
    (block,) = main.body.blocks
    graph = KernelGraph(mod, list(block.bindings), Lives(main))
    kernels = _Kernels(mod, {var.name_hint for var in mod.get_global_vars()})
    writer = _Writer(graph, kernels, spec, [tuple(group) for group in groups], count())
    func = with_blocks(main, [relax.DataflowBlock(writer.written())])
    return _with_kernels(mod, func, kernels)


def _with_kernels(mod: tvm.IRModule, main: relax.Function, kernels: _Kernels) -> tvm.IRModule:
    """The module with another ``main``, the merged kernels, and without what nobody calls now."""
    functions = {gvar: func for gvar, func in mod.functions_items()}
    functions[mod.get_global_var("main")] = main
    functions.update({gvar: func for gvar, func in kernels.made.values()})
    called = {
        str(binding.value.args[0].name_hint)
        for func in functions.values()
        if isinstance(func, relax.Function)
        for binding in all_bindings(func.body)
        if is_call(binding.value, *KERNEL_CALLS)
    }
    kept = {
        gvar: func
        for gvar, func in functions.items()
        if gvar.name_hint in called or gvar.name_hint not in kernels.merged
    }
    return tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)


class _Kernels:
    """The merged kernels of a module, one for all groups of the same members."""

    def __init__(self, mod: tvm.IRModule, names: set[str]) -> None:
        self._mod, self._names = mod, names
        self.made: dict[Any, tuple[tvm.ir.GlobalVar, tirx.PrimFunc]] = {}
        self.merged: set[str] = set()  # what became a member

    def of(
        self,
        members: Sequence[KernelCall],
        slots: Sequence[int],
        count: int,
        over: Sequence[int],
        spread: Sequence[int],
    ) -> tvm.ir.GlobalVar:
        """The kernel of a group.

        Parameters
        ----------
        members : sequence of KernelCall
        slots : sequence of int
            For each result of each member, in order, which result of the kernel it is part of.
        count : int
            Results of the kernel.
        over : sequence of int
            Those of them that it overwrites.
        spread : sequence of int
            By stage, as :data:`~tvm_edge.lowering.merge_launches.SPREAD`.
        """
        names = [str(member.name.name_hint) for member in members]
        key = (*names, *slots, -1, *over)
        if key not in self.made:
            self.merged.update(names)
            func = self._composed(members, slots, count, over)
            if any(spread):
                func = func.with_attr(SPREAD, list(spread))
            name = unused_name("_and_".join(names)[:_LONGEST_NAME], self._names)
            self._names.add(name)
            gvar = tvm.ir.GlobalVar(name)
            relax.expr._update_type(gvar, func.ty)
            self.made[key] = (gvar, func)
        return self.made[key][0]

    def _composed(
        self, members: Sequence[KernelCall], slots: Sequence[int], count: int, over: Sequence[int]
    ) -> tirx.PrimFunc:
        """Parameters: what is read, what is overwritten, other results."""
        funcs = [self._mod[member.name] for member in members]
        fresh = [slot for slot in range(count) if slot not in over]
        place = {slot: number for number, slot in enumerate((*over, *fresh))}
        made = compose(
            funcs,
            outputs=[len(member.types) for member in members],
            results=[place[slot] for slot in slots],
        )
        target = funcs[0].attrs.get("target") if funcs[0].attrs is not None else None
        if target is not None:
            made = made.with_attr("target", target)
        return made.without_attr(AREAS)


class _Writer:
    """Writes the bindings of a block whose groups are merged.

    Attributes
    ----------
    merged : dict of int to tuple of int
        By number of each kernel that was made its members' numbers.
    """

    def __init__(
        self,
        graph: KernelGraph,
        kernels: _Kernels,
        spec: DeviceSpec,
        groups: Sequence[tuple[int, ...]],
        fresh: Iterator[int],
    ) -> None:
        self._graph, self._kernels, self._spec = graph, kernels, spec
        self._fresh = fresh
        self.merged: dict[int, tuple[int, ...]] = {}
        self._builder = relax.BlockBuilder()
        position = {number: place for place, number in graph.number.items()}
        self._leader = {home: home for home in graph.before}
        self._members: dict[int, list[KernelCall]] = {}
        self._numbers: dict[int, tuple[int, ...]] = {}
        for group in groups:
            leader = position[min(group)]
            self._leader.update({position[member]: leader for member in group})
            self._members[leader] = [graph.kernels[member] for member in group]
            self._numbers[leader] = group
        self._latest: dict[relax.Var, relax.Var] = {}  # of a tensor the name of its last state

    def written(self) -> list[relax.Binding]:
        """Bindings of the block."""
        bindings: list[relax.Binding] = []
        for node in self._order():
            if node in self._members:
                number = next(self._fresh)
                self.merged[number] = self._graph.numbers_of(self._numbers[node])
                bindings += self._group(self._members[node], self._spread(node), number)
            elif node in self._graph.number:
                bindings += self._kernel(self._graph.kernels[self._graph.number[node]])
            else:
                bindings.append(self._graph.bindings[node])
        return bindings

    def _order(self) -> Iterator[int]:
        """Nodes in the order they had, as far as groups do not have to wait."""
        networkx = require("networkx", "onnx", "to merge parallel kernels")

        graph = networkx.DiGraph()
        graph.add_nodes_from(sorted(set(self._leader.values())))
        for node, before in self._graph.before.items():
            own = self._leader[node]
            edges = {self._leader[other] for other in before} - {own}
            graph.add_edges_from((other, own) for other in edges)
        wanted: dict[int, tuple[int, int, int]] = {node: (node, 1, node) for node in graph}
        for node in graph:
            # What only takes a weight out of its tuple comes where it is read.
            is_item = isinstance(self._graph.bindings[node].value, relax.TupleGetItem)
            if is_item and not graph.in_degree(node):
                readers = list(graph.successors(node))
                wanted[node] = (min(readers, default=node), 0, node)
        return networkx.lexicographical_topological_sort(graph, key=wanted.__getitem__)

    def _kernel(self, kernel: KernelCall) -> list[relax.Binding]:
        """A kernel by itself, written into the last state of what it writes a part of."""
        part = self._part(kernel)
        unpacked = [binding for _, binding in kernel.items]
        if part is None:
            return [kernel.binding, *unpacked]
        old, places = self._latest.get(part), kernel.places
        call = kernel.binding.value
        if (old is None) != (places[0] < 0) or (
            old is not None and not old.same_as(call.args[1].fields[places[0]])
        ):
            call = self._call(
                kernel.name, kernel.inputs, [] if old is None else [old], kernel.types
            )
        var = kernel.binding.var
        self._latest[part] = next((b.var for i, b in kernel.items if i == 0), var)
        if kernel.is_tuple and not any(index == 0 for index, _ in kernel.items):
            unpacked.append(self._bind(f"{var.name}_part", relax.TupleGetItem(var, 0)))
            self._latest[part] = unpacked[-1].var
        return [self._named(var, call), *unpacked]

    def _spread(self, leader: int) -> list[int]:
        """By stage, of a group's launches; empty where nothing is known of them."""
        launches = self._graph.launches(self._numbers[leader])
        return [] if launches is None else spread_over(launches, self._spec)

    def _group(
        self, members: Sequence[KernelCall], spread: Sequence[int], number: int
    ) -> list[relax.Binding]:
        """Kernels as one, which gets this number."""
        inputs = [arg for member in members for arg in member.inputs]
        slots: list[int] = []
        types: list[relax.Type] = []
        old: list[relax.Expr | None] = []  # what a result overwrites
        slot_of: dict[relax.Var, int] = {}
        for member in members:
            part = self._part(member)
            for index, ty in enumerate(member.types):
                known = slot_of.get(part) if index == 0 and part is not None else None
                if known is not None:
                    slots.append(known)
                    continue
                slots.append(len(types))
                if index == 0 and part is not None:
                    slot_of[part] = len(types)
                    old.append(self._latest.get(part))
                else:
                    place = member.places[index]
                    args = member.binding.value.args[1].fields
                    old.append(args[place] if place >= 0 else None)
                types.append(ty)
        over = [slot for slot, state in enumerate(old) if state is not None]
        states = [state for state in old if state is not None]
        name = self._kernels.of(members, slots, len(types), over, spread)
        order = [*over, *(slot for slot in range(len(types)) if slot not in over)]
        call = self._call(name, inputs, states, [types[slot] for slot in order])
        made = self._bind("parallel", call, at_kernel(number))
        bindings = [made]
        results: dict[int, relax.Expr] = {
            slot: made.var if len(types) == 1 else relax.TupleGetItem(made.var, index)
            for index, slot in enumerate(order)
        }
        at = 0
        for member in members:
            own = slots[at : at + len(member.types)]
            at += len(own)
            bindings += self._unpacked(member, [results[slot] for slot in own])
        return bindings

    def _unpacked(self, member: KernelCall, results: Sequence[relax.Expr]) -> list[relax.Binding]:
        """The names that a member's results have."""
        part, var = self._part(member), member.binding.var
        if not member.is_tuple:
            if part is not None:
                self._latest[part] = var
            return [self._named(var, results[0])]
        bindings = [self._named(item.var, results[index]) for index, item in member.items]
        state = next((item.var for index, item in member.items if index == 0), None)
        if part is not None:
            if state is None:
                bindings.append(self._bind(f"{var.name}_part", results[0]))
                state = bindings[-1].var
            self._latest[part] = state
        if member.whole:
            fields = [self._bind(f"{var.name}_{i}", each) for i, each in enumerate(results)]
            whole = relax.Tuple([field.var for field in fields])
            bindings += [*fields, self._named(var, whole)]
        return bindings

    def _part(self, kernel: KernelCall) -> relax.Var | None:
        """The tensor of which a kernel writes a known part."""
        func = self._graph.mod[kernel.name]
        args = len(kernel.binding.value.args[1].fields)
        position = kernel.places[0] if kernel.places[0] >= 0 else args
        if area_of(func, position) is None:
            return None
        held = self._graph.lives.held[kernel.binding.var]
        (tensor,) = held[0] if isinstance(held, tuple) else held
        return tensor

    def _call(
        self,
        name: tvm.ir.GlobalVar,
        inputs: Sequence[relax.Expr],
        over: Sequence[relax.Expr],
        types: Sequence[relax.Type],
    ) -> relax.Call:
        """A call whose first results overwrite `over`."""
        given = types[0] if len(types) == 1 else list(types)
        if not over:
            return relax.call_tir(name, list(inputs), given)
        places = [len(inputs) + i for i in range(len(over))] + [-1] * (len(types) - len(over))
        return relax.op.call_tir_inplace(name, [*inputs, *over], places, given)

    def _bind(self, name: str, value: relax.Expr, at: Span | None = None) -> relax.VarBinding:
        value = self._builder.normalize(value)
        return relax.VarBinding(relax.DataflowVar(name, value.ty, at), value)

    def _named(self, var: relax.Var, value: relax.Expr) -> relax.VarBinding:
        return relax.VarBinding(var, self._builder.normalize(value))
