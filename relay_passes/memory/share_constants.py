"""Equal constants of ``main`` as one object, so that they are stored once.

Filters that several convolutions read are packed for each of them by itself, and networks made from
one file, which an artifact may have several of, are read from it each by themselves.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import array_of
from tvm_edge.schedules.accesses import nodes_in

__all__ = ["ShareConstants"]

_SAMPLE = 64  # bytes


@tvm.transform.module_pass(opt_level=0, name="ShareConstants")
class ShareConstants:
    """Replace each tensor constant by the first of the same type and bytes.

    Runs before :class:`~tvm_edge.relay_passes.memory.lift_weights.LiftWeights`, which tells
    constants apart by identity.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        mod = mod.clone()
        mod[gvar] = _Sharer(mod).visit_expr(mod[gvar])
        return mod


@mutator
class _Sharer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._first: dict[tuple[str, bytes], list[tuple[relax.Expr, np.ndarray]]] = {}
        self._seen: dict[tvm.ir.GenericConst, relax.Expr] = {}
        constants = set(nodes_in(mod["main"], tvm.ir.GenericConst))
        self._of_type = Counter(str(each.ty) for each in constants)

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        # Large weights are mostly the only ones of their shape, and need not be read.
        if not isinstance(op.ty, relax.TensorType) or self._of_type[str(op.ty)] == 1:
            return op
        if op not in self._seen:
            self._seen[op] = self._first_equal(op)
        return self._seen[op]

    def _first_equal(self, op: tvm.ir.GenericConst) -> relax.Expr:
        """Return the first constant of the same type and bytes, which may be this one."""
        value = np.ascontiguousarray(array_of(op.value)).reshape(-1).view("uint8")
        # Few share their first bytes without being equal: most weights are read no further.
        others = self._first.setdefault((str(op.ty), value[:_SAMPLE].tobytes()), [])
        for other, known in others:
            if np.array_equal(value, known):
                return other
        others.append((op, value))
        return op
