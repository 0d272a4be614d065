"""Made up values, sizes that only the run knows, quantised numbers, branches, sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.growing_graph import FLOAT, GrowingGraph
from tests.fuzz.recipes.recipe import ints, maybe, node, recipe


@recipe
def _made(g: GrowingGraph) -> onnx.NodeProto:
    match g.rng.randrange(6):
        case 0:
            value = helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0])
            shape = ints(g, list(g.shape()))
            return node(g, "ConstantOfShape", [shape], value=maybe(g, value))
        case 1:
            limits = [g.constant(np.int64(v)) for v in (0, g.rng.choice((3, 0, -3)), 1)]
            return node(g, "Range", limits)
        case 2:
            return node(g, "EyeLike", [g.pick(FLOAT, (2,))], k=g.rng.choice((None, 1, -2, 9)))
        case 3:
            return node(g, g.rng.choice(("Shape", "Size")), [g.pick()])
        case 4:
            x = g.pick((TensorProto.INT64,))
            depth, values = g.constant(np.int64(5)), g.constant(np.float32([0, 1]))
            return node(g, "OneHot", [x, depth, values], axis=g.axis(x))
        case _:
            return node(g, "Trilu", [g.pick(FLOAT, (2, 3))], upper=maybe(g, 0))


@recipe
def _data_dependent(g: GrowingGraph) -> onnx.NodeProto:
    match g.rng.randrange(4):
        case 0:
            return node(g, "NonZero", [g.pick()])
        case 1:
            return node(g, "Unique", [g.pick(FLOAT)], sorted=maybe(g, 0))
        case 2:
            x = g.pick()
            length = g.values[x][1][0]
            return node(g, "Compress", [x, g.new(TensorProto.BOOL, (length,))], axis=0)
        case _:
            boxes = g.new(TensorProto.FLOAT, (1, 6, 4))
            scores = g.new(TensorProto.FLOAT, (1, 2, 6))
            limits = [g.constant(np.int64([3])), g.constant(np.float32([0.5]))]
            return node(g, "NonMaxSuppression", [boxes, scores, *limits])


@recipe
def _quantise(g: GrowingGraph) -> onnx.NodeProto:
    match g.rng.randrange(4):
        case 0:
            x = g.pick((TensorProto.FLOAT,))
            scale = g.constant(np.float32(0.1))
            zero = [g.constant(np.asarray(3, g.rng.choice(("int8", "uint8"))))]
            return node(g, "QuantizeLinear", [x, scale, *(zero if g.rng.random() < 0.7 else [])])
        case 1:
            x = g.pick((TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32))
            return node(g, "DequantizeLinear", [x, g.constant(np.float32(0.1))])
        case 2:
            return node(g, "DynamicQuantizeLinear", [g.pick((TensorProto.FLOAT,))], 3)
        case _:
            a = g.pick((TensorProto.INT8, TensorProto.UINT8), (2,))
            inner = g.values[a][1][1]
            b = g.new(g.rng.choice((TensorProto.INT8, TensorProto.UINT8)), (inner, 3))
            return node(g, "MatMulInteger", [a, b])


@recipe
def _einsum(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT, (2,))
    kind, shape = g.values[x]
    equation = g.rng.choice(("ij->ji", "ij->", "ij", "ii->i", "...j->...", "ij,jk->ik", "ij,ij->i"))
    inputs = [x]
    if "," in equation:
        inputs.append(g.new(kind, (shape[1], 3) if "jk" in equation else shape))
    return node(g, "Einsum", inputs, equation=equation)


@recipe
def _if(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT)
    branches = []
    for op in g.rng.choices(("Relu", "Neg", "Exp", "Identity"), k=2):
        out = g.name()
        body = helper.make_node(op, [x], [out])
        value = helper.make_tensor_value_info(out, *g.values[x])
        branches.append(helper.make_graph([body], "branch", [], [value]))
    condition = g.new(TensorProto.BOOL, g.rng.choice(((), (1,))))
    return node(g, "If", [condition], then_branch=branches[0], else_branch=branches[1])


@recipe
def _sequence(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT)
    return node(g, g.rng.choice(("SequenceConstruct", "SplitToSequence", "Optional")), [x])


@recipe
def _constant(g: GrowingGraph) -> onnx.NodeProto:
    value = numpy_helper.from_array(g.random(g.rng.choice(FLOAT), g.shape()))
    return node(g, "Constant", [], value=value)


@recipe
def _any(g: GrowingGraph) -> onnx.NodeProto:
    """Any operator at all, with inputs as its schema wants them and attributes as they come."""
    schema = onnx.defs.get_schema(g.rng.choice(_SCHEMAS), g.opset)
    inputs = [g.pick() for _ in range(g.rng.randint(schema.min_input, min(schema.max_input, 5)))]
    attrs = {}
    for name, attribute in schema.attributes.items():
        if attribute.required or g.rng.random() < 0.2:
            kinds: dict[str, Any] = {"INT": 1, "FLOAT": 0.5, "INTS": [1, 1], "STRING": "linear"}
            attrs[name] = kinds.get(str(attribute.type).rpartition(".")[2])
    return node(g, schema.name, inputs, max(schema.min_output, 1), **attrs)


_SCHEMAS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
