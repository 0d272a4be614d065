"""Attention as one kernel on a CPU, where its scores would leave a core's cache.

Separate kernels write the scores of all heads and read them three times. With few of them that is
no loss: 12 heads of 197 tokens take 0.72 ms either way, 4 heads of 1024 tokens 3.1 instead of
4.5 ms (two cores of an AMD EPYC, Zen 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import constant_of, count_uses, is_call, static_shape
from tvm_edge.schedules.attention import attention
from tvm_edge.schedules.pairs import PAIR

__all__ = ["FuseAttention"]

_OPAQUE = 8
_MOST_WASTE = 1 / 8  # of the columns, filled up to whole panels


@tvm.transform.module_pass(opt_level=0, name="FuseAttention")
class FuseAttention:
    """Have ``softmax(q @ k * scale + mask) @ v`` be one kernel.

    Shapes are static, nobody else reads the scores or their softmax, and types are float32, or
    bfloat16 on CPUs that multiply its pairs.

    Parameters
    ----------
    spec : DeviceSpec
        The CPU: its vector registers decide the tile, its cache whether there is one.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod = _Fuser(mod, func, self._spec).fused(gvar, func)
        return mod


@dataclass(frozen=True)
class _Scores:
    """Operands of the scores that a softmax reads."""

    query: relax.Expr
    key: relax.Expr
    scale: float
    mask: relax.Expr | None


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function, spec: DeviceSpec) -> None:
        super().__init__(mod)
        self._uses = count_uses(func)
        self._spec = spec

    def fused(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module, one function rewritten; asked for here, as it is gone with the mutator."""
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        found = self._scores(op) if is_call(op, "relax.matmul") else None
        if found is None:
            return op
        query, key, value = (static_shape(x.ty) for x in (found.query, found.key, op.args[1]))
        if query is None or key is None or value is None or 0 in query + key + value:
            return op
        if not len(query) >= 3 or not query[:-2] == key[:-2] == value[:-2]:
            return op
        pairs = self._pairs(op, found, query[-1])
        if pairs is None:
            return op
        tile = self._tile(query[-2], key[-1], value[-1], masked=found.mask is not None)
        if tile is None:
            return op
        rows, width = tile
        operands = [found.query, found.key, op.args[1]]
        if found.mask is not None:
            operands.append(found.mask)

        def compute(q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor) -> te.Tensor:
            lanes = self._spec.lanes()
            own = mask[0] if mask else None
            tile = {"rows": rows, "width": width, "lanes": lanes}
            return attention(q, k, v, own, scale=found.scale, pairs=pairs, **tile)

        return self.builder_.call_te(
            compute,
            *operands,
            primfunc_name_hint="attention",
            primfunc_attrs={"op_pattern": _OPAQUE},
        )

    def _pairs(self, op: relax.Call, found: _Scores, depth: int) -> bool | None:
        """Return whether pairs of bfloat16 are multiplied; ``None`` of types without a kernel."""
        kinds = {str(x.ty.dtype) for x in (found.query, found.key, op.args[1])}
        if kinds == {"float32"}:
            return False
        multiplies = self._spec.pair_product and depth % PAIR == 0
        return True if kinds == {"bfloat16"} and multiplies else None

    def _scores(self, op: relax.Call) -> _Scores | None:
        """Recognise the softmax that weighs the values of a product."""
        softmax = self._before_cast(self._sole_producer(op.args[0]))
        if not is_call(softmax, "relax.nn.softmax") or str(softmax.ty.dtype) != "float32":
            return None
        rank = int(softmax.ty.ndim)
        if int(softmax.attrs.axis) % rank != rank - 1:
            return None
        scores, mask = self._sole_producer(softmax.args[0]), None
        if is_call(scores, "relax.add"):
            first = self._before_cast(self._sole_producer(scores.args[0]))
            turned = not is_call(first, "relax.matmul", "relax.multiply", "relax.divide")
            scaled, mask = reversed(scores.args) if turned else scores.args
            if static_shape(scores.ty) != static_shape(scaled.ty) or not self._is_mask(mask, rank):
                return None
            scores = self._sole_producer(scaled)
        scale = 1.0
        if is_call(scores, "relax.multiply", "relax.divide"):
            number = constant_of(scores.args[1])
            if number is None or number.size != 1 or number.ndim > rank:
                return None
            divides = is_call(scores, "relax.divide")
            scale = 1 / float(number.item()) if divides else float(number.item())
            scores = self._sole_producer(scores.args[0])
        scores = self._before_cast(scores)
        if not is_call(scores, "relax.matmul"):
            return None
        return _Scores(scores.args[0], scores.args[1], scale, mask)

    def _is_mask(self, mask: relax.Expr, rank: int) -> bool:
        shape = static_shape(mask.ty)
        return shape is not None and len(shape) == rank and str(mask.ty.dtype) == "float32"

    def _tile(
        self, rows: int, columns: int, length: int, *, masked: bool
    ) -> tuple[int, int] | None:
        """Rows of a tile and columns of a panel; ``None`` where separate kernels are as good."""
        spec, lanes = self._spec, self._spec.lanes()
        if lanes == 1 or length % lanes or 4 * rows * columns <= spec.l2_cache // 4:
            return None
        most = 4 if spec.vector_registers >= 32 else 2
        for vectors in range(most, 0, -1):
            width = vectors * lanes
            left = -columns % width
            if left and (masked or left > columns * _MOST_WASTE):
                continue
            tall = max(1, (spec.vector_registers - vectors - 2) // vectors)
            heights = range(max(1, tall - 2), tall + 1)
            return min(heights, key=lambda tall: (ceil(rows / tall) * tall, -tall)), width
        return None

    def _before_cast(self, call: relax.Call | None) -> relax.Call | None:
        """Return the call whose result `call` converts, or `call` if that is no conversion."""
        return self._sole_producer(call.args[0]) if is_call(call, "relax.astype") else call

    def _sole_producer(self, expr: relax.Expr) -> relax.Call | None:
        """The call that produces `expr` if nobody else reads its result."""
        if not isinstance(expr, relax.Var) or self._uses.get(expr, 1) > 1:
            return None
        value = self.lookup_binding(expr)
        return value if isinstance(value, relax.Call) else None
