"""Kernels check those of their arguments that may be wrong.

TVM has each kernel look at the type, rank, shape, strides, offset and device of each argument, a
dozen branches with a message each. In a network most arguments are tensors that ``main`` has made
of the shapes that the compiler gave them, for which nothing has to be looked at: less code to
generate, the most of what LLVM works on in the host's part of a GPU's kernels, and less to run.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

__all__ = ["MADE", "DropArgumentChecks"]

MADE = "tvm_edge.made"
"""Attribute of a kernel: the places of the arguments that its callers have made themselves."""

# What comes before an argument's place in the message of a check.
_ARGUMENT = "on argument #"


@tvm.transform.module_pass(opt_level=0, name="DropArgumentChecks")
class DropArgumentChecks:
    """Take the checks of arguments in :data:`MADE` out of what ``MakePackedAPI`` has made.

    Assertions that a kernel makes of its own are left.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if func.attrs is None or MADE not in func.attrs:
                continue
            made = {str(int(place)) for place in func.attrs[MADE]}

            def kept(stmt: tirx.AssertStmt, made: set[str] = made) -> tirx.Stmt:
                return nothing if _argument(stmt) in made else stmt

            body = tvm_ffi.structural_map(func.body, (tirx.AssertStmt, kept))
            updated.update_func(gvar, func.with_body(body).without_attr(MADE))
        return updated


def _argument(stmt: tirx.AssertStmt) -> str | None:
    """Return the argument that a check is of, read from its message."""
    parts = iter(stmt.message_parts)
    for part in parts:
        if part.value.endswith(_ARGUMENT):
            place: str = next(parts).value
            return place
    return None
