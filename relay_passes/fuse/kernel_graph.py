"""The kernels of a block, which are independent of each other, and which may be one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import tvm
from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.lowering.member_launches import merged_launches, with_merged_launches
from tvm_edge.lowering.parallel_members import can_compose, compose
from tvm_edge.relay_passes.ir.aliases import Lives
from tvm_edge.relay_passes.ir.dependences import dependences, places_of
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, is_call, static_shape
from tvm_edge.relay_passes.ir.locations import kernel_of
from tvm_edge.relay_passes.ir.vdevices import reading_device
from tvm_edge.schedules.launch_work import Launch, launches_of, shares_memory
from tvm_edge.schedules.parallel_policy import Group, Problem

__all__ = ["KernelCall", "KernelGraph", "Measured"]

# Seen on pocl 3.1 with its optimiser: wrong results and broken memory, of kernels that are right
# alone. Rules of CPUs make kernels without barriers for such devices; this is of what none knows.
_BARRIERS = "they have barriers, and compilers of OpenCL for CPUs get such kernels wrong as one"

_UNMERGED = "together they exceed what a launch may have, or have nothing that runs in parallel"

Measured = Callable[[Sequence[Sequence[Launch]]], float | None]
"""Measured speed-up of kernels as one over the same apart, given the launches of each."""


class KernelCall:
    """A call of a kernel, with the bindings that unpack its results from a tuple.

    Attributes
    ----------
    binding : Binding
    items : list of (int, Binding)
        By index in the tuple, all of those.
    places : list of int
        For each result the argument that it overwrites, or -1.
    whole : bool
        Whether the tuple itself is read otherwise.
    """

    def __init__(self, binding: relax.Binding) -> None:
        self.binding = binding
        self.items: list[tuple[int, relax.Binding]] = []
        self.places = places_of(binding.value)
        self.whole = not isinstance(binding.var, relax.DataflowVar)  # or read by a later block

    @property
    def name(self) -> tvm.ir.GlobalVar:
        return self.binding.value.args[0]

    @property
    def inputs(self) -> list[relax.Expr]:
        """The arguments that it only reads."""
        args = self.binding.value.args[1].fields
        return [arg for position, arg in enumerate(args) if position not in self.places]

    @property
    def types(self) -> list[relax.Type]:
        """Types of its results."""
        ty = self.binding.value.ty_args[0]
        return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]

    @property
    def is_tuple(self) -> bool:
        return isinstance(self.binding.var.ty, relax.TupleType)


class KernelGraph:
    """The bindings of a block as nodes of a graph: kernels with what unpacks them, and others."""

    def __init__(self, mod: tvm.IRModule, bindings: Sequence[relax.Binding], lives: Lives) -> None:
        self.mod, self.bindings, self.lives = mod, bindings, lives
        self.kernels: list[KernelCall] = []
        self.number: dict[int, int] = {}  # of the kernel at a position
        self.home = list(range(len(bindings)))  # the position of the node that a binding is of
        owner: dict[relax.Var, int] = {}
        for position, binding in enumerate(bindings):
            value = binding.value
            if is_call(value, *KERNEL_CALLS):
                self.number[position] = len(self.kernels)
                owner[binding.var] = position
                self.kernels.append(KernelCall(binding))
            elif isinstance(value, relax.TupleGetItem) and value.tuple_value in owner:
                self.home[position] = owner[value.tuple_value]
                kernel = self.kernels[self.number[self.home[position]]]
                kernel.items.append((int(value.index), binding))
            else:
                for var in relax.analysis.free_vars(value):
                    if var in owner and isinstance(var.ty, relax.TupleType):
                        self.kernels[self.number[owner[var]]].whole = True
        found = dependences(mod, bindings, lives)
        self.before: dict[int, set[int]] = {home: set() for home in self.home}
        for position, before in enumerate(found):
            # What unpacks a kernel is written beside it, also from after a cast of lengths.
            if self.home[position] == position:
                self.before[position] |= {self.home[each] for each in before} - {position}

    def numbers_of(self, members: Sequence[int]) -> tuple[int, ...]:
        """Numbers in the module of kernels of this block; none of kernels without a number."""
        found = (kernel_of(self.kernels[member].binding.var) for member in members)
        return tuple(number for number in found if number is not None)

    def problem(self, spec: DeviceSpec, measured: Measured) -> Problem:
        """The kernels, and what is independent among them."""

        asked: dict[tuple[tuple[Launch, ...], ...], float | None] = {}

        def gain(members: tuple[int, ...]) -> float | None:
            known = self.launches(members)
            if known is None:
                return None
            key = tuple(known)
            if key not in asked:
                asked[key] = measured(known)
            return asked[key]

        def verdict(members: tuple[int, ...]) -> bool | None:
            found = [gain(order) for order in self.orders(members)]
            known = [each for each in found if each is not None]
            return max(known) > 1 if known else None

        def fastest(members: tuple[int, ...]) -> tuple[int, ...] | None:
            found = {order: gain(order) for order in self.orders(members)}
            known = {order: each for order, each in found.items() if each is not None}
            return max(known, key=known.__getitem__) if known else None

        nearest: dict[int, frozenset[int]] = {}  # kernels before, by position of a node
        crossed: dict[int, int] = {}
        for position in sorted(self.before):
            above: set[int] = set()
            for other in self.before[position]:
                above |= {self.number[other]} if other in self.number else nearest[other]
            nearest[position] = frozenset(above)
            crosses = is_call(self.bindings[position].value, "relax.to_vdevice")
            crossed[position] = crosses + max(
                (crossed[other] for other in self.before[position]), default=0
            )

        def refused(members: tuple[int, ...]) -> str:
            if spec.on_cpu and any(map(self._has_barriers, members)):
                return _BARRIERS
            return can_compose([self.mod[self.kernels[member].name] for member in members])

        positions = sorted(self.number)
        return Problem(
            [nearest[position] for position in positions],
            self._launches,
            spec,
            [self._kind(position, crossed[position]) for position in positions],
            refused,
            verdict,
            fastest,
        )

    def orders(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The orders of a group that are worth to be measured: of a pair both, of more its own.

        Whose work-groups come first moves the time of a launch by a tenth. Of two kernels with
        launches alike nobody could tell the orders apart.
        """
        known = self.launches(members)
        if len(members) != 2 or known is None or known[0] == known[1]:
            return [members]
        return [members, members[::-1]]

    def launches(self, members: Sequence[int]) -> list[tuple[Launch, ...]] | None:
        """The launches of kernels, if those of all are known."""
        found = [self._launches(member) for member in members]
        known = [launches for launches in found if launches is not None]
        return known if len(known) == len(found) else None

    def _kind(self, position: int, crossed: int) -> tuple[int, ...] | None:
        """Key that kernels of one launch share; ``None`` for a kernel that stays as it is.

        A kernel that waits for the other device is not to keep one waiting that does not.
        """
        kernel = self.kernels[self.number[position]]
        call = kernel.binding.value
        if reading_device(self.mod, call) != 0 or self._why_not(kernel):
            return None
        return (crossed,)

    def _why_not(self, kernel: KernelCall) -> bool:
        args = list(kernel.binding.value.args[1].fields)
        tensors = [arg.ty for arg in args] + kernel.types
        if any(static_shape(ty) is None or 0 in (static_shape(ty) or ()) for ty in tensors):
            return True
        over = [(result, place) for result, place in enumerate(kernel.places) if place >= 0]
        # The one that is overwritten comes last: as a parameter it is the first result.
        return bool(over) and over != [(0, len(args) - 1)]

    def _launches(self, number: int) -> tuple[Launch, ...] | None:
        if number not in self._known:
            name = self.kernels[number].name
            kernel = str(name.name_hint)
            if kernel not in self._by_name:
                self._by_name[kernel] = launches_of(self.mod[name])
            self._known[number] = self._by_name[kernel]
        return self._known[number]

    @cached_property
    def _known(self) -> dict[int, tuple[Launch, ...] | None]:
        return {}

    @cached_property
    def _by_name(self) -> dict[str, tuple[Launch, ...] | None]:
        return {}

    def checked(self, group: Group, target: tvm.target.Target) -> Group:
        """A group as it is, or refused because no launch of it would have two members.

        Limits of a launch are known when it is lowered.
        """
        if not group.taken:
            return group
        funcs = [self.mod[self.kernels[member].name] for member in group.members]
        names = tuple(str(self.kernels[member].name.name_hint) for member in group.members)
        if names not in self._merges:
            lowered = with_merged_launches(compose(funcs), target)
            self._merges[names] = any(len(each) > 1 for each in merged_launches(lowered))
        if self._merges[names]:
            return group
        return replace(group, taken=False, reason=_UNMERGED)

    @cached_property
    def _merges(self) -> dict[tuple[str, ...], bool]:
        return {}

    def _has_barriers(self, number: int) -> bool:
        return shares_memory(self.mod[self.kernels[number].name])
