"""Kernels check those of their arguments that may be wrong.

TVM has each kernel look at the type, rank, shape, strides, offset and device of each argument, a
dozen branches with a message each. In a network most arguments are tensors that ``main`` has made
of the shapes that the compiler gave them, for which nothing has to be looked at: less code to
generate, the most of what LLVM works on in the host's part of a GPU's kernels, and less to run.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import tvm
from tvm import tirx

__all__ = ["MADE", "DropArgumentChecks"]

MADE = "tvm_edge.made"
"""Attribute of a kernel whose arguments are tensors of constant shapes: the places of those that
its callers have made themselves."""

# Around what a kernel does, behind what MakePackedAPI puts in front of it.
_COMPUTE = "compute_scope"

# What comes before an argument's place in the message of a check.
_ARGUMENT = "on argument #"


@tvm.transform.module_pass(opt_level=0, name="DropArgumentChecks")
class DropArgumentChecks:
    """Take the checks of arguments in :data:`MADE` out of what ``MakePackedAPI`` has made.

    Assertions that a kernel makes of its own are left.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if func.attrs is None or MADE not in func.attrs:
                continue
            body = _unchecked(func.body, frozenset(int(place) for place in func.attrs[MADE]))
            assert body is not None, "a kernel does something"
            updated.update_func(gvar, func.with_body(body).without_attr(MADE))
        return updated


def _unchecked(stmt: tirx.Stmt, made: Collection[int]) -> tirx.Stmt | None:
    """A statement without checks of arguments that are `made`; None if nothing is left of it."""
    if isinstance(stmt, tirx.AssertStmt):
        return None if _argument(stmt) in made else stmt
    if isinstance(stmt, tirx.SeqStmt):
        parts = [part for one in stmt.seq if (part := _unchecked(one, made)) is not None]
        return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0] if parts else None
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        body = _unchecked(stmt.then_case, made)
        return None if body is None else tirx.IfThenElse(stmt.condition, body, None)
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != _COMPUTE:
        body = _unchecked(stmt.body, made)
        return None if body is None else tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
    return stmt


def _argument(stmt: tirx.AssertStmt) -> int | None:
    """Which argument a check is of, by its message."""
    parts = [part.value for part in stmt.message_parts]
    for part, following in pairwise(parts):
        if part.endswith(_ARGUMENT):
            return int(following)
    return None
