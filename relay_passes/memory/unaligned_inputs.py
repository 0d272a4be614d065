"""Inputs that kernels of the CPU read wherever they begin.

LLVM's vector loads assume that a tensor begins on 64 bytes, as what TVM allocates does; NumPy's
arrays begin 16 bytes after a page. A model's input would have to be copied first, in each run.
A kernel that is told that it begins anywhere loads the same vectors without that assumption, which
costs nothing where it does begin there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_edge.relay_passes.ir.dependences import places_of
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call
from tvm_edge.runtime.entry import UNALIGNED
from tvm_edge.schedules.accesses import nodes_in

__all__ = ["take_unaligned", "with_unaligned"]


def take_unaligned(
    mod: tvm.IRModule, inputs: Collection[int]
) -> tuple[tvm.IRModule, tuple[int, ...]]:
    """Have kernels read inputs wherever these begin.

    Parameters
    ----------
    mod : IRModule
        Operators in ``main`` are calls of scheduled kernels.
    inputs : collection of int
        Parameters of ``main`` in memory of the CPU.

    Returns
    -------
    IRModule
    tuple of int
        Those of the inputs that kernels alone read, maybe in another shape, and none writes.
    """
    main = mod["main"]
    number = {main.params[place]: place for place in inputs}
    readers: defaultdict[int, set[tuple[tvm.ir.GlobalVar, int]]] = defaultdict(set)
    others: set[int] = set()
    for binding in all_bindings(main.body):
        value = binding.value
        if is_call(value, *KERNEL_CALLS):
            written = places_of(value)
            for place, arg in enumerate(value.args[1].fields):
                if arg not in number:
                    others |= {number[v] for v in _read(arg) if v in number}
                elif place in written or place in _assumed(mod[value.args[0]]):
                    others.add(number[arg])
                else:
                    readers[number[arg]].add((value.args[0], place))
        elif is_call(value, "relax.reshape") and value.args[0] in number:
            number[binding.var] = number[value.args[0]]  # a view
        else:
            others |= {number[v] for v in _read(value) if v in number}
    others |= {number[v] for v in _read(main.body.body) if v in number}
    taken = tuple(place for place in sorted(readers) if place not in others)
    places: defaultdict[tvm.ir.GlobalVar, set[int]] = defaultdict(set)
    for one in taken:
        for gvar, place in readers[one]:
            places[gvar].add(place)
    updated = mod.clone()
    for gvar, own in places.items():
        updated.update_func(gvar, _reading_anywhere(mod[gvar], own))
    return updated, taken


def with_unaligned(mod: tvm.IRModule, taken: Sequence[int]) -> tvm.IRModule:
    """A lowered module that tells the runtime which inputs begin anywhere."""
    if not taken:
        return mod
    shape = relax.ShapeExpr(list(taken))
    func = relax.Function([], relax.SeqExpr([], shape), shape.ty, is_pure=True)
    mod = mod.clone()
    mod[UNALIGNED] = func.with_attr("global_symbol", UNALIGNED)
    return mod


def _read(value: relax.Expr) -> list[relax.Var]:
    """The variables that an expression reads; of a branch's bindings those come by themselves."""
    if isinstance(value, relax.If):
        ends = (value.cond, value.true_branch.body, value.false_branch.body)
        return [var for end in ends for var in relax.analysis.free_vars(end)]
    return list(relax.analysis.free_vars(value))


def _assumed(func: tirx.PrimFunc) -> set[int]:
    """The parameters that instructions are matched to, which say where these have to begin."""
    place = {param: number for number, param in enumerate(func.params)}
    matches = (m for block in nodes_in(func.body, s_tir.SBlock) for m in block.match_buffers)
    sources = [match.source.source for match in matches]
    return {place[source] for source in sources if source in place}


def _reading_anywhere(func: tirx.PrimFunc, places: Collection[int]) -> tirx.PrimFunc:
    """A kernel that assumes of some parameters no more than that elements are whole."""
    params = list(func.params)
    names: dict[tirx.Var, tirx.Var] = {}
    for place in places:
        old = params[place]
        ty = old.ty
        params[place] = tirx.decl_buffer(
            ty.shape,
            ty.dtype,
            old.name,
            strides=ty.strides,
            elem_offset=ty.elem_offset,
            scope=ty.storage_scope,
            data_alignment=max(1, tvm.DataType(str(ty.dtype)).itemsize),
            offset_factor=ty.offset_factor,
        )
        names[old] = params[place]
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: names.get(var, var)))
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs)
