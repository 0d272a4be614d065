"""Dependences between the bindings of a block: by names, and by memory written in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Lives, reached
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, is_call

__all__ = ["AREAS", "Access", "accesses", "area_of", "dependences", "places_of"]

AREAS = "tvm_edge.areas"
"""Attribute of kernels whose tensors are parts of larger ones: of each the parameter, the first and
how many along axis 1 of the larger tensor. Of that the kernel reads and writes nothing else."""

Area = tuple[int, int]
"""The first and how many along axis 1."""


@dataclass(frozen=True)
class Access:
    """A tensor that a binding reads or writes.

    Attributes
    ----------
    tensor : relax.Var
        The tensor by the variable that stands for it.
    area : (int, int) or None
        The part of it, if it is known to be one.
    writes : bool
    """

    tensor: relax.Var
    area: Area | None
    writes: bool

    def collides(self, other: Access) -> bool:
        """Return whether both may touch the same elements."""
        if self.area is None or other.area is None:
            return True
        (a, count_a), (b, count_b) = self.area, other.area
        return a < b + count_b and b < a + count_a


def places_of(call: relax.Call) -> list[int]:
    """Return for each result of a kernel call the argument that it overwrites, or -1."""
    if is_call(call, "relax.call_tir_inplace"):
        return [int(place) for place in call.attrs.inplace_indices]
    ty = call.ty_args[0]
    return [-1] * (len(ty.fields) if isinstance(ty, relax.TupleType) else 1)


def area_of(func: tvm.ir.BaseFunc, parameter: int) -> Area | None:
    """Return the part of a parameter that a kernel touches, if it is known to be one."""
    areas = func.attrs.get(AREAS, ()) if func.attrs is not None else ()
    for position, first, count in areas:
        if int(position) == parameter:
            return int(first), int(count)
    return None


def accesses(mod: tvm.IRModule, binding: relax.Binding, lives: Lives) -> Iterator[Access]:
    """Yield the tensors that a binding touches."""
    value = binding.value
    if not isinstance(value, relax.Call):
        return  # another name, which touches nothing
    if not is_call(value, *KERNEL_CALLS):
        yield from (Access(tensor, None, False) for tensor in reached(value, lives.held))
        return
    func, args = mod[value.args[0]], list(value.args[1].fields)
    places = places_of(value)
    for position, arg in enumerate(args):
        for tensor in reached(arg, lives.held):
            yield Access(tensor, area_of(func, position), position in places)
    held = lives.held[binding.var]
    results = held if isinstance(held, tuple) else (held,)
    fresh = [i for i, place in enumerate(places) if place < 0]
    for number, index in enumerate(fresh):
        for tensor in results[index]:
            yield Access(tensor, area_of(func, len(args) + number), True)


def dependences(
    mod: tvm.IRModule, bindings: Sequence[relax.Binding], lives: Lives
) -> list[set[int]]:
    """Return for each binding those before it that have to stay there.

    Kernels that write different parts of one tensor, as the branches of a concatenation do, may run
    in any order, although each names the tensor as the one before has left it.

    Parameters
    ----------
    mod : IRModule
        Operators in ``main`` are kernels.
    bindings : sequence of Binding
        Of one block.
    lives : Lives
        Of all of ``main``.
    """
    made: dict[relax.Var, int] = {}
    read: dict[relax.Var, list[tuple[int, Access]]] = defaultdict(list)
    written: dict[relax.Var, list[tuple[int, Access]]] = defaultdict(list)
    found: list[set[int]] = []
    wall = -1  # nothing passes it
    for position, binding in enumerate(bindings):
        before = {made[var] for var in _named(mod, binding.value) if var in made}
        for access in accesses(mod, binding, lives):
            earlier = list(written[access.tensor])
            if access.writes:
                earlier += read[access.tensor]
            before |= {p for p, other in earlier if access.collides(other)}
            (written if access.writes else read)[access.tensor].append((position, access))
        if wall >= 0:
            before.add(wall)
        # A cast gives symbolic lengths their names, which types of what follows may use.
        if isinstance(binding, relax.MatchCast):
            before |= set(range(position))
            wall = position
        before.discard(position)
        made[binding.var] = position
        found.append(before)
    return found


def _named(mod: tvm.IRModule, value: relax.Expr) -> list[relax.Var]:
    """Return the variables that an expression needs to have been bound.

    Not that of a tensor of which it writes a known part: any state of it will do.
    """
    if not is_call(value, *KERNEL_CALLS):
        return list(relax.analysis.free_vars(value))
    func, places = mod[value.args[0]], places_of(value)
    kept = [
        arg
        for position, arg in enumerate(value.args[1].fields)
        if position not in places or area_of(func, position) is None
    ]
    return [var for arg in kept for var in relax.analysis.free_vars(arg)]
