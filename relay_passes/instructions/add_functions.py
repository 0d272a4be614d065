"""Add the functions of one module to another."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_edge.relay_passes.ir.expressions import unused_name, with_functions_named

__all__ = ["add_functions"]


def add_functions(made: tvm.IRModule, module: tvm.IRModule, entries: Mapping[str, str]) -> None:
    """Add a module of instructions to `made`, in which equal kernels are there once.

    Parameters
    ----------
    made, module : IRModule
    entries : mapping of str to str
        Functions that nobody calls, and what they are called in `made`. Others keep their names
        where these are not taken.
    """
    taken = {str(gvar.name_hint): gvar for gvar in made.get_global_vars()}
    names: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    fresh: list[tuple[tvm.ir.GlobalVar, tvm.ir.BaseFunc]] = []
    for gvar, func in module.functions_items():
        name = str(gvar.name_hint)
        known = taken.get(name)
        if isinstance(func, tirx.PrimFunc) and known is not None:
            if tvm_ffi.structural_equal(func, made[known]):
                names[gvar] = known
                continue
        wanted = entries.get(name, name)
        new = gvar
        if wanted in taken or wanted != name:
            new = tvm.ir.GlobalVar(unused_name(wanted, taken))
            relax.expr._update_type(new, func.ty)
        taken[str(new.name_hint)] = new
        if name not in entries:
            names[gvar] = new
        fresh.append((new, func))
    called = {old: new for old, new in names.items() if not old.same_as(new)}
    for new, func in fresh:
        if isinstance(func, relax.Function) and called:
            func = with_functions_named(func, called)
        made.update_func(new, func.with_attr("global_symbol", str(new.name_hint)))
