"""Independent kernels of a network, taken out of it to be measured apart and as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_edge.relay_passes.fuse.kernel_graph import KernelCall
from tvm_edge.relay_passes.ir.dependences import area_of
from tvm_edge.relay_passes.ir.expressions import static_shape
from tvm_edge.schedules.base import workspace_of

__all__ = ["Area", "GroupProblem", "group_problem"]

Area = tuple[int, int]
"""Start of the part of a result along axis 1, and its extent."""


@dataclass(frozen=True)
class GroupProblem:
    """Kernels with inputs of their own.

    Attributes
    ----------
    module : IRModule
        ``main`` calls them one after the other, in one block, and returns what they compute;
        weights are inputs as well.
    areas : tuple of (int, int) or None
        For each result the part along axis 1 that its kernel writes, if that is not all of it.
    """

    module: tvm.IRModule
    areas: tuple[Area | None, ...]


def group_problem(mod: tvm.IRModule, members: Sequence[KernelCall]) -> GroupProblem:
    """Take kernels out of a network.

    Parameters
    ----------
    mod : IRModule
        Has the kernels.
    members : sequence of KernelCall
        With static shapes. A tensor that one of them overwrites is an input of it.
    """
    builder = relax.BlockBuilder()
    params: list[relax.Var] = []
    given: list[list[relax.Var]] = []
    for member in members:
        own = [
            relax.Var(f"input{len(params) + i}", _plain(arg.ty))
            for i, arg in enumerate(member.binding.value.args[1].fields)
        ]
        params += own
        given.append(own)
    results: list[relax.Expr] = []
    areas: list[Area | None] = []
    with builder.function("main", params):
        with builder.dataflow():
            for member, own in zip(members, given, strict=True):
                func = mod[member.name]
                name = builder.add_func(func, str(member.name.name_hint))
                types = [_plain(ty) for ty in member.types]
                made = types[0] if len(types) == 1 else types
                if any(place >= 0 for place in member.places):
                    call = relax.op.call_tir_inplace(name, own, member.places, made)
                else:
                    call = relax.call_tir(name, own, made)
                bound = builder.emit(call)
                # Nobody reads a workspace.
                for index in range(len(types) - len(workspace_of(func))):
                    item = bound
                    if len(types) > 1:
                        item = builder.emit(relax.TupleGetItem(bound, index))
                    place = member.places[index]
                    results.append(builder.emit_output(item))
                    areas.append(area_of(func, place if place >= 0 else len(own) + index))
        builder.emit_func_output(relax.Tuple(results))
    return GroupProblem(builder.get(), tuple(areas))


def _plain(ty: relax.TensorType) -> relax.TensorType:
    """Return a tensor's type without its device: there is one alone."""
    shape = static_shape(ty)
    assert shape is not None, "kernels of other shapes are not considered"
    return relax.TensorType(shape, ty.dtype)
