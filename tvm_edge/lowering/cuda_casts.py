"""Conversions of vectors read anew each time that CUDA sources have them.

TVM's CUDA generator converts a vector lane by lane from a variable that it names for the operand,
and finds that variable again by the operand's text for as long as its block is open: the same
registers converted twice, with a store between, gave the first values twice.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import IF_THEN_ELSE, nodes_in

__all__ = ["NameConvertedVectors"]


@tirx.transform.prim_func_pass(opt_level=0, name="NameConvertedVectors")
class NameConvertedVectors:
    """Bind each vector that is converted to a variable before its statement.

    What is converted under a condition stays: its variable ends with the condition's block, and
    the texts of those before it are now names. Runs last, as ``StmtSimplify`` would put the
    vectors back.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        statements = (tirx.BufferStore, tirx.Bind, tirx.Evaluate)
        return func.with_body(tvm_ffi.structural_map(func.body, (statements, _named)))


def _named(statement: tirx.Stmt) -> tirx.Stmt:
    choices = (call for call in nodes_in(statement, ir.Call) if call.op.same_as(IF_THEN_ELSE))
    guarded = [cast for call in choices for cast in nodes_in(call, tirx.Cast)]
    bindings: list[tirx.Stmt] = []

    def bind(cast: tirx.Cast) -> Any:
        if (
            cast.ty.dtype.lanes == 1
            or isinstance(cast.value, tirx.Var)
            or any(cast.same_as(g) for g in guarded)
        ):
            return cast
        operand = tirx.Var("converted", cast.value.ty)
        bindings.append(tirx.Bind(operand, cast.value))
        return tirx.Cast(cast.ty, operand)

    named = tvm_ffi.structural_map(statement, (tirx.Cast, bind))
    return tirx.SeqStmt([*bindings, named]) if bindings else statement
