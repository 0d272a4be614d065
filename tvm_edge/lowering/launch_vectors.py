"""Vectors that several launches need: each of them makes its own.

``CommonSubexprElim`` calculates what occurs more than once at the innermost place around all of it.
For launches that follow each other, as those of a composed kernel's members, that is the host.
``SplitHostDevice`` hands what a launch needs of the host's over as an argument, and an argument is
no vector: ``Cannot pass vector type through packed API``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

__all__ = ["VectorsInLaunches"]


@tvm.transform.module_pass(opt_level=0, name="VectorsInLaunches")
class VectorsInLaunches:
    """Calculate vectors where they are used and not on the host, in functions that launch.

    Runs before ``SplitHostDevice``. Functions of a CPU keep their names for them: they launch
    nothing.

    Examples
    --------
    ``lanes = Broadcast(i, 4); launch: y[…] = x[lanes]; launch: z[…] = w[lanes]`` loses its first
    statement, and both launches read at ``Broadcast(i, 4)``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and (vectors := _vectors_of_the_host(func.body)):
                updated.update_func(gvar, func.with_body(_without(func.body, vectors)))
        return updated


def _vectors_of_the_host(body: tirx.Stmt) -> dict[tirx.Var, tirx.Expr]:
    """Vectors with a name outside of the launches of a function, and how they are calculated.

    None where nothing is launched.
    """
    found: dict[tirx.Var, tirx.Expr] = {}
    launches = False

    def launch(node: tirx.AttrStmt) -> Any:
        nonlocal launches
        if node.attr_key != "thread_extent":
            return None
        launches = True
        return tvm_ffi.WalkResult.SKIP

    def bind(node: tirx.Bind) -> None:
        dtype = getattr(node.var.ty, "dtype", None)  # a pointer has none
        if dtype is not None and tvm.DataType(str(dtype)).lanes > 1:
            found[node.var] = _in_terms_of(node.value, found)

    tvm_ffi.structural_walk(body, ((tirx.AttrStmt, launch), (tirx.Bind, bind)), order="pre")
    return found if launches else {}


def _without(body: tirx.Stmt, vectors: dict[tirx.Var, tirx.Expr]) -> tirx.Stmt:
    nothing = tirx.Evaluate(tirx.const(0, "int32"))

    def unnamed(node: tirx.Bind) -> tirx.Stmt:
        return nothing if node.var in vectors else node

    return _in_terms_of(tvm_ffi.structural_map(body, (tirx.Bind, unnamed)), vectors)


def _in_terms_of(node: Any, vectors: dict[tirx.Var, tirx.Expr]) -> Any:
    """A statement or an expression with what vectors are in place of their names."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: vectors.get(var, var)))
