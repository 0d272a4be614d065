"""Equal constants of ``main`` as one object, so that they are stored once.

Networks made from one file, which an artifact may have several of, are read from it each by itself.
"""

from __future__ import annotations

import hashlib

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["ShareConstants"]


@tvm.transform.module_pass(opt_level=0, name="ShareConstants")
class ShareConstants:
    """Replace each tensor constant by the first of the same type and bytes.

    Runs in front of :class:`~tvm_edge.relay_passes.lift_weights.LiftWeights`, which tells constants
    apart by identity.
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
        self._first: dict[tuple[tuple[int, ...], str, bytes], relax.Expr] = {}
        self._seen: dict[tvm.ir.GenericConst, relax.Expr] = {}

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        if not isinstance(op.ty, relax.TensorType):
            return op
        if op not in self._seen:
            value = op.value
            array = value.numpy()
            content = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
            key = (tuple(int(dim) for dim in value.shape), str(value.dtype), content)
            self._seen[op] = self._first.setdefault(key, op)
        return self._seen[op]
