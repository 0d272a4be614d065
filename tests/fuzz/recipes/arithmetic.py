"""Element by element, and along axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.growing_graph import FLOAT, INT, GrowingGraph
from tests.fuzz.recipes.recipe import ints, maybe, node, recipe


@recipe
def _unary(g: GrowingGraph) -> onnx.NodeProto:
    op = g.rng.choice(
        "Abs Neg Sqrt Exp Log Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh "
        "Acosh Atanh Sigmoid Relu Erf Sign Reciprocal Softplus Softsign IsNaN IsInf Identity "
        "HardSwish Mish Not BitwiseNot Selu Elu LeakyRelu HardSigmoid ThresholdedRelu Celu Gelu "
        "Shrink Swish".split()
    )
    kinds = {"Not": (TensorProto.BOOL,), "BitwiseNot": INT}.get(op, FLOAT)
    if op in ("Abs", "Neg", "Sign", "Relu", "Identity"):
        kinds = FLOAT + INT
    alpha = g.rng.choice((None, 0.0, 0.3, -1.0, 2.0, float("inf")))
    if op not in "Selu Elu LeakyRelu HardSigmoid ThresholdedRelu Celu".split():
        alpha = None
    return node(g, op, [g.pick(kinds)], alpha=alpha)


@recipe
def _binary(g: GrowingGraph) -> onnx.NodeProto:
    op = g.rng.choice(
        "Add Sub Mul Div Pow Mod Less LessOrEqual Greater GreaterOrEqual Equal And Or Xor "
        "BitwiseAnd BitwiseOr BitwiseXor BitShift PRelu Max Min Sum Mean".split()
    )
    kinds = FLOAT + INT
    if op in ("And", "Or", "Xor"):
        kinds = (TensorProto.BOOL,)
    elif op.startswith("Bit"):
        kinds = (*INT, TensorProto.UINT32, TensorProto.UINT64)
    a = g.pick(kinds)
    inputs = [a, g.like(a)]
    if op in ("Max", "Min", "Sum", "Mean"):
        inputs = [a, *(g.like(a) for _ in range(g.rng.randrange(4)))]
    elif op not in ("PRelu", "BitShift", "Mod", "Pow") and g.rng.random() < 0.5:
        inputs.reverse()
    extra: dict[str, Any] = {}
    if op == "BitShift":
        extra["direction"] = g.rng.choice(("LEFT", "RIGHT"))
    if op == "Mod":
        extra["fmod"] = g.rng.choice((None, 1, 1))
    return node(g, op, inputs, **extra)


@recipe
def _where(g: GrowingGraph) -> onnx.NodeProto:
    a = g.pick()
    shape = g.values[a][1]
    return node(g, "Where", [g.new(TensorProto.BOOL, shape), a, g.like(a)])


@recipe
def _clip(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT)
    if g.opset < 11:
        return node(g, "Clip", [x], min=maybe(g, -0.5), max=maybe(g, 0.5))
    dtype = helper.tensor_dtype_to_np_dtype(g.values[x][0])
    bounds = [
        g.constant(np.asarray(b).astype(dtype)) if g.rng.random() < 0.7 else "" for b in (1, 2)
    ]
    return node(g, "Clip", [x, *bounds])


@recipe
def _cast(g: GrowingGraph) -> onnx.NodeProto:
    if g.rng.random() < 0.2:
        return node(g, "CastLike", [g.pick(), g.pick()])
    return node(g, "Cast", [g.pick()], to=g.rng.choice(range(1, 17)))


@recipe
def _reduce(g: GrowingGraph) -> onnx.NodeProto:
    op = "Reduce" + g.rng.choice("Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split())
    x = g.pick(FLOAT + INT)
    keep = g.rng.choice((None, 0, 1))
    if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
        inputs = [x, ints(g, g.axes(x))] if g.rng.random() < 0.7 else [x]
        empty = g.rng.choice((None, 0, 1))
        return node(g, op, inputs, keepdims=keep, noop_with_empty_axes=empty)
    return node(g, op, [x], axes=g.axes(x) or None, keepdims=keep)


@recipe
def _arg(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT)
    last = g.rng.choice((None, 0, 1)) if g.opset >= 12 else None
    op = g.rng.choice(("ArgMax", "ArgMin"))
    return node(g, op, [x], axis=maybe(g, g.axis(x)), keepdims=maybe(g, 0), select_last_index=last)


@recipe
def _top_k(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT, (1, 2, 3, 4))
    k, axis = g.rng.choice((0, 1, 2, 3, 5)), maybe(g, g.axis(x))
    if g.opset < 10:
        return node(g, "TopK", [x], 2, axis=axis, k=k)
    largest = g.rng.choice((None, 0, 1)) if g.opset >= 11 else None
    return node(g, "TopK", [x, ints(g, [k])], 2, axis=axis, largest=largest)


@recipe
def _soft(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT)
    op = g.rng.choice(("Softmax", "LogSoftmax", "Hardmax", "Flatten"))
    return node(g, op, [x], axis=maybe(g, g.axis(x), 0.8))


@recipe
def _cum_sum(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT)
    axis = g.constant(np.asarray(g.axis(x), g.rng.choice(("int32", "int64"))))
    flags = {"exclusive": maybe(g, 1), "reverse": maybe(g, 1)}
    return node(g, g.rng.choice(("CumSum", "CumSum", "CumProd")), [x, axis], **flags)
