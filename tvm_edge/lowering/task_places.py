"""Place of a task along each axis, divided once.

Tasks number the places of several axes. Lengths that only the run tells divide a task's number in
20 cycles and more, and LLVM leaves a division where it stands: in a loop that pads an image under
the condition that a line is inside, once for every element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in, uses
from tvm_edge.schedules.open_lengths import has_open_lengths

__all__ = ["TaskPlaces"]


@tvm.transform.module_pass(opt_level=0, name="TaskPlaces")
class TaskPlaces:
    """Bind the quotients of a parallel loop's variable to variables, in kernels of open shapes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and has_open_lengths(func):
                named = {bind.var: bind.value for bind in nodes_in(func.body, tirx.Bind)}
                change = partial(_with_places, named=named)
                updated.update_func(
                    gvar, func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, change)))
                )
        return updated


def _with_places(loop: tirx.For, *, named: Mapping[tirx.Var, tirx.Expr]) -> tirx.For:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    lengths = _factors(loop.extent, named)
    inner = [node.loop_var for node in nodes_in(loop.body, tirx.For)]
    inner += [node.var for node in nodes_in(loop.body, tirx.Bind, tirx.Let)]
    places: dict[tvm_ffi.StructuralKey, tirx.Bind] = {}

    def place(node: tirx.FloorDiv | tirx.FloorMod) -> tirx.Expr:
        if not _is_of_task(node, loop.loop_var, lengths, inner):
            return node
        key = tvm_ffi.StructuralKey(node)
        if key not in places:
            places[key] = tirx.Bind(tirx.Var("place", node.ty.dtype), node)
        return places[key].var

    kinds = (tirx.FloorDiv, tirx.FloorMod)
    body = tvm_ffi.structural_map(loop.body, (kinds, place), order="pre")
    if not places:
        return loop
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        tirx.SeqStmt([*places.values(), body]),
        loop.thread_binding,
        loop.annotations,
    )


def _is_of_task(
    node: tirx.FloorDiv | tirx.FloorMod,
    task: tirx.Var,
    lengths: Sequence[tirx.Expr],
    inner: Sequence[tirx.Var],
) -> bool:
    """Return whether a division is one of the task's number alone, by lengths of its loop.

    Where there is a task none of them is 0.
    """
    by = [factor for factor in _factors(node.b) if constant(factor) is None]
    if not by or not uses(node.a, task) or nodes_in(node, ir.TensorLoad, ir.Call):
        return False
    if any(uses(node, var) for var in inner):
        return False
    return all(any(tvm_ffi.structural_equal(each, own) for own in lengths) for each in by)


def _factors(
    length: tirx.Expr, named: Mapping[tirx.Var, tirx.Expr] = MappingProxyType({})
) -> list[tirx.Expr]:
    """Return the factors of a length, which may be the name of a product."""
    product = named.get(length) if isinstance(length, tirx.Var) else length
    if isinstance(product, tirx.Mul):
        return [*_factors(product.a, named), *_factors(product.b, named)]
    return [length]
