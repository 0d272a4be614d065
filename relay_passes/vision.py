"""Lower composite vision operators to kernels, once it is known where they run."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops import NON_MAX_SUPPRESSION
from tvm_edge.schedules.vision import nms

__all__ = ["LowerVision"]


@tvm.transform.module_pass(opt_level=0, name="LowerVision")
class LowerVision:
    """Replace composite vision operators by calls of their kernels."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        lowerer = _Lowerer(mod)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                lowerer.builder_.update_func(gvar, lowerer.visit_expr(func))
        return lowerer.builder_.get()


@mutator
class _Lowerer(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if isinstance(op.op, tvm.ir.Op) and op.op.name in _LOWERINGS:
            return _LOWERINGS[op.op.name](self.builder_, op)
        return op


def _lower_nms(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Select per class, count, then write rows into a result of just that many."""
    boxes, scores = call.args
    attrs = call.attrs
    batch, classes, count = (int(d) for d in scores.ty.shape)
    most = min(int(attrs["max_output_boxes_per_class"]), count)
    lists = batch * classes
    # A kernel runs where its operands are.
    device = boxes.ty.vdevice
    if most == 0:
        empty = bb.emit(relax.op.zeros((0, 3), "int64"))
        return empty if device is None else bb.emit(relax.op.to_vdevice(empty, device))

    def kernel(func: tirx.PrimFunc, name: str) -> tvm.ir.GlobalVar:
        return bb.add_func(
            func if device is None else func.with_attr("target", device.target), name
        )

    def tensor(shape: tuple[int | tirx.Expr, ...], dtype: str) -> relax.TensorType:
        return relax.TensorType(shape, dtype, device)

    select = nms.select_boxes(
        batch,
        classes,
        count,
        max_selected=most,
        iou_threshold=float(attrs["iou_threshold"]),
        score_threshold=float(attrs["score_threshold"]) if attrs["has_score_threshold"] else None,
        center_point_box=bool(attrs["center_point_box"]),
    )
    types = [tensor((lists, most), "int32"), tensor((lists,), "int32")]
    selected = bb.emit(relax.call_tir(kernel(select, "nms_select"), [boxes, scores], types))
    picked = bb.emit(relax.TupleGetItem(selected, 0))
    counts = bb.emit(relax.TupleGetItem(selected, 1))
    shape_kernel = kernel(nms.selected_shape(lists), "nms_shape")
    lengths = bb.emit(relax.call_tir(shape_kernel, [counts], tensor((2,), "int64")))
    shape = bb.emit(relax.op.tensor_to_shape(lengths))
    rows = tirx.Var("num_selected", "int64")
    bb.match_cast(shape, relax.ShapeType([rows, 3]))
    fill = kernel(nms.fill_indices(batch, classes, most), "nms_fill")
    return bb.emit(relax.call_tir(fill, [picked, counts], tensor((rows, 3), "int64")))


_LOWERINGS: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    NON_MAX_SUPPRESSION: _lower_nms,
}
