"""Constant matrices of dense layers in panels.

Panels cost nothing where they are packed when the model is compiled: a copy in the kernel is a
quarter of the time of 49x768x3072, and 1 % of it for thousands of rows. With one row on the left,
or two, the matrix is read once, and faster as one piece of memory (1x768x3072: 59 instead of 70 µs)
if there are enough panels for the cores, which else share its rows. Where only the run counts the
rows one kernel is right for few of them and for many.

Matrices of bfloat16 are packed in pairs of rows where the CPU multiplies pairs: one row takes 54 µs
of 768x3072 then, and 82 µs widened. There the kernel itself packs the matrix of a product of two
activations, as attention has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import (
    const,
    constant_of,
    is_call,
    lengths_of,
    static_shape,
)
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.ir.workloads import FLOATS
from tvm_edge.relay_passes.memory.stream_weights import streamed, streamed_constant
from tvm_edge.schedules.cpu.panel_tiles import float16_steps, panel_width
from tvm_edge.schedules.pairs import PAIR
from tvm_edge.schedules.panels import DENSE, DENSE_PAIRS, dense, dense_of_two, pack_matrix

__all__ = ["PackMatrices"]

_FEWEST = 3  # rows
_PANELS = 4  # for each core, of a matrix that fewer rows read
_FEW_COPIED = 8  # rows up to which a copy of a matrix does not pay
_OUT_ELEMENTWISE_FUSABLE = 4


@tvm.transform.module_pass(opt_level=0, name="PackMatrices")
class PackMatrices:
    """Pack the constant matrices of products; of one or two rows where that is faster.

    Parameters
    ----------
    spec : DeviceSpec
        The CPU: its vector registers decide the width of a panel.
    float16 : bool
        Whether products of float16 are multiplied in float16.
    """

    def __init__(self, spec: DeviceSpec, *, float16: bool = False) -> None:
        self._spec = spec
        self._float16 = float16

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod = _Packer(mod, self._spec, self._float16).packed(gvar, func)
        return mod


def _rows(shape: Sequence[int | tirx.Expr]) -> int | None:
    """Return how many rows a product has, ``None`` where only the run counts those of a matrix."""
    if isinstance(shape[-2], tirx.Expr):
        return None
    fixed = [length for length in shape[:-1] if isinstance(length, int)]
    return prod(fixed) if len(fixed) == len(shape) - 1 else 0


@mutator
class _Packer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, spec: DeviceSpec, float16: bool) -> None:
        super().__init__(mod)
        self._spec = spec
        self._float16 = float16

    def packed(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module, one function rewritten; asked for here, as it is gone with the mutator."""
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not is_call(op, "relax.matmul"):
            return op
        weight = op.args[1]
        bound = self.builder_.lookup_binding(weight) if isinstance(weight, relax.Var) else None
        kept = streamed_constant(bound)
        matrix = constant_of(weight if kept is None else kept)
        if matrix is None:
            return self._by_pairs(op)
        shape = lengths_of(op.args[0].ty)
        if matrix.ndim != 2 or str(matrix.dtype) not in FLOATS:
            return op
        dtype = str(matrix.dtype)
        if shape is None or len(shape) < 2 or str(op.args[0].ty.dtype) != dtype:
            return op
        columns, rows = matrix.shape[1], _rows(shape)
        if columns < self._spec.lanes() or rows == 0:
            return op
        halves = self._float16 and dtype == "float16"
        steps = float16_steps(len(matrix), self._spec) if halves else 0
        width = panel_width(rows, columns, self._spec, float16_steps=steps)
        pairs = dtype == "bfloat16" and bool(self._spec.pair_product)
        if rows is not None and rows < _FEWEST:
            # Widened from 16 bits the product of a row has partial sums of its own.
            is_wide = dtype == "float32" or pairs
            if not is_wide or columns < _PANELS * self._spec.cores * width:
                return op
        panels: relax.Expr = const(pack_matrix(matrix, width, PAIR if pairs else 1), dtype)
        if kept is not None:
            panels = self.builder_.emit(streamed(panels, vdevice_of(weight.ty)))
        whole = pairs or rows is None
        return self.builder_.call_te(
            dense,
            op.args[0],
            panels,
            columns,
            whole_panels=whole,
            primfunc_name_hint=DENSE_PAIRS if pairs else DENSE,
            # Of two blocks TVM would not say itself that others fuse with them.
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE} if whole else None,
        )

    def _by_pairs(self, op: relax.Call) -> relax.Expr:
        """Have the kernel of a product of two activations pack the matrix, and multiply pairs."""
        rows, matrix = (static_shape(each.ty) for each in op.args)
        kinds = {str(each.ty.dtype) for each in (*op.args, op)}
        if rows is None or matrix is None or kinds != {"bfloat16"} or not self._spec.pair_product:
            return op
        if 0 in rows or len(rows) < 2 or len(matrix) not in (2, len(rows)):
            return op
        *batch, depth, columns = matrix
        if (batch and rows[:-2] != matrix[:-2]) or rows[-2] <= _FEW_COPIED:
            return op
        lanes = self._spec.lanes()
        if columns < lanes:
            return op
        data = op.args[0]
        if depth % PAIR:  # the kernel that stores it does that
            data = self.builder_.emit(relax.op.nn.pad(data, [0] * (2 * len(rows) - 1) + [1]))
        count = rows[-2] if batch else prod(rows[:-1])
        width = panel_width(count, columns, self._spec, batch=prod(batch))
        return self.builder_.call_te(
            dense_of_two,
            data,
            op.args[1],
            width,
            lanes,
            primfunc_name_hint=DENSE_PAIRS,
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )
