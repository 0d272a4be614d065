"""What each operator of a Relax function takes in a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import tvm
from tvm import relax, tirx

from tvm_edge.frontend.flops import Operation, Shape, flops
from tvm_edge.frontend.normal_form import NodeCost, SourceNode
from tvm_edge.ops import DEQUANTIZE, QUANTIZE, QUANTIZED_ADD

__all__ = ["call_cost", "source_nodes"]


def source_nodes(main: relax.Function) -> tuple[list[SourceNode], dict[relax.Var, int]]:
    """The calls of a function with their costs, and the variables that hold their results.

    Parameters
    ----------
    main : relax.Function
        Well-formed: every call is bound to a variable, which is the operator's name.

    Returns
    -------
    nodes : list of SourceNode
        Branches and all in them are one, an ``If``. ``op_type`` is the operator without
        ``relax.``, or the function that ``call_tir`` calls.
    results : dict of relax.Var to int
    """
    nodes: list[SourceNode] = []
    results: dict[relax.Var, int] = {}
    made: dict[relax.Var, tuple[int, ...]] = {}  # what any value comes from, tuples and names too
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        value = binding.value
        inputs = tuple(
            dict.fromkeys(i for var in relax.analysis.free_vars(value) for i in made.get(var, ()))
        )
        made[binding.var] = inputs
        if isinstance(value, relax.Call):
            results[binding.var] = len(nodes)
            made[binding.var] = (len(nodes),)
            nodes.append(SourceNode(binding.var.name, _op_type(value), call_cost(value), inputs))
        elif isinstance(value, relax.If):
            results[binding.var] = len(nodes)
            made[binding.var] = (len(nodes),)
            nodes.append(SourceNode(binding.var.name, "If", inputs=inputs))
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in results:
            results[binding.var] = results[value.tuple_value]
    return nodes, results


def _op_type(call: relax.Call) -> str:
    if not isinstance(call.op, tvm.ir.Op):
        return str(getattr(call.op, "name_hint", call.op))
    name = str(call.op.name).removeprefix("relax.")
    callee = call.args[0] if name.startswith("call_") and call.args else None
    return callee.name_hint if isinstance(callee, tvm.ir.GlobalVar) else name


def call_cost(call: relax.Call) -> NodeCost:
    """What one call takes in a run."""
    operands = [leaf for argument in call.args for leaf in _tensors(argument)]
    weights = [leaf for leaf in operands if isinstance(leaf, tvm.ir.GenericConst)]
    computed = list(dict.fromkeys(leaf for leaf in operands if isinstance(leaf, relax.Var)))
    results = list(_types(call.ty))
    return NodeCost(
        flops=_flops(call, [_shape(leaf.ty) for leaf in operands], [_shape(ty) for ty in results]),
        parameters=sum(
            math.prod(_shape(leaf.ty) or ()) for leaf in weights if _is_parameter(leaf.ty)
        ),
        weight_bytes=_nbytes([leaf.ty for leaf in weights]) or 0,
        input_bytes=_nbytes([leaf.ty for leaf in computed]),
        output_bytes=_nbytes(results),
    )


def _flops(call: relax.Call, inputs: list[Shape | None], outputs: list[Shape | None]) -> int | None:
    name = _op_type(call)
    if not isinstance(call.op, tvm.ir.Op) or not outputs:
        return None
    if call.attrs is None and name in _OF_ATTRIBUTES:
        return None  # a kernel of that name, which does not say its window or its equation
    if name in _CONTRACTIONS:
        needed = [*inputs[:2], outputs[0]]
        if len(needed) < 3 or any(shape is None for shape in needed):
            return None
        first, second, result = (shape or () for shape in needed)
        return 2 * _CONTRACTIONS[name](call, first, second, result)
    if name in _POOLS:
        window = {"kernel_shape": [int(d) for d in call.attrs.pool_size]}
        return flops(Operation(_POOLS[name], inputs, outputs, window))
    if name == "einsum":
        return flops(Operation("Einsum", inputs, outputs, {"equation": str(call.attrs.subscripts)}))
    onnx_type = _ONNX.get(name)
    return None if onnx_type is None else flops(Operation(onnx_type, inputs, outputs))


Contraction = Callable[[relax.Call, Shape, Shape, Shape], int]


def _convolution(call: relax.Call, _data: Shape, weight: Shape, result: Shape) -> int:
    """Multiply-adds: each output sums over the weights of one output channel."""
    return math.prod(result) * math.prod(weight) // _extent(call, weight, "O")


def _transposed_convolution(call: relax.Call, data: Shape, weight: Shape, _result: Shape) -> int:
    """Multiply-adds: each input is spread by the weights of its channel."""
    return math.prod(data) * math.prod(weight) // _extent(call, weight, "I")


def _matmul(_call: relax.Call, data: Shape, _weight: Shape, result: Shape) -> int:
    return math.prod(result) * data[-1]


def _outer(_call: relax.Call, _data: Shape, _weight: Shape, result: Shape) -> int:
    return math.prod(result) // 2  # products without sums


def _extent(call: relax.Call, weight: Shape, axis: str) -> int:
    """The length of an axis of the weights, its blocks in a layout such as ``OIHW16o`` included."""
    letters = [c for c in str(call.attrs.kernel_layout) if c.isalpha()]
    return math.prod(d for c, d in zip(letters, weight, strict=True) if c.upper() == axis) or 1


_CONTRACTIONS: Mapping[str, Contraction] = {
    **{f"nn.conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"nn.conv{n}d_transpose": _transposed_convolution for n in (1, 2, 3)},
    "matmul": _matmul,
    "outer": _outer,
}

_POOLS: Mapping[str, str] = {
    **{f"nn.max_pool{n}d": "MaxPool" for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": "AveragePool" for n in (1, 2, 3)},
}

# Whose work attributes decide.
_OF_ATTRIBUTES = {"einsum", *_POOLS, *(name for name in _CONTRACTIONS if name.startswith("nn."))}

# The ONNX operator that counts alike.
_ONNX: Mapping[str, str] = {
    **dict.fromkeys(
        """
        abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or
        bitwise_xor ceil clip cos cosh dequantize divide equal erf exp floor floor_divide floor_mod
        greater greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp
        logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative
        nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu nn.softplus not_equal
        power quantize right_shift round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh
        trunc
        """.split(),
        "Relu",
    ),
    **dict.fromkeys(
        """
        arange astype broadcast_to concat expand_dims eye eye_like flatten flip full full_like
        gather_elements gather_nd index_tensor layout_transform memory.view meshgrid
        nn.batch_flatten nn.dropout nn.pad nn.pixel_shuffle one_hot ones ones_like permute_dims
        repeat reshape reverse_sequence scatter_elements scatter_nd shape_of shape_to_tensor size
        slice_scatter split squeeze stack strided_slice take tensor_to_shape tile tril triu where
        zeros zeros_like
        """.split(),
        "Identity",
    ),
    **{f"nn.adaptive_avg_pool{n}d": "GlobalAveragePool" for n in (1, 2, 3)},
    DEQUANTIZE: "Relu",
    QUANTIZE: "Relu",
    QUANTIZED_ADD: "Relu",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
    "cumprod": "CumSum",
    "cumsum": "CumSum",
    "max": "ReduceMax",
    "mean": "ReduceMean",
    "min": "ReduceMin",
    "nn.batch_norm": "BatchNormalization",
    "nn.group_norm": "GroupNormalization",
    "nn.instance_norm": "InstanceNormalization",
    "nn.layer_norm": "LayerNormalization",
    "nn.log_softmax": "LogSoftmax",
    "nn.rms_norm": "RMSNormalization",
    "nn.softmax": "Softmax",
    "prod": "ReduceProd",
    "sum": "ReduceSum",
}


def _tensors(expr: relax.Expr) -> Iterator[relax.Expr]:
    if isinstance(expr, relax.Tuple):
        for part in expr.fields:
            yield from _tensors(part)
    elif isinstance(expr, (relax.Var, tvm.ir.GenericConst)) and any(_types(expr.ty)):
        yield expr


def _types(ty: relax.Type) -> Iterator[relax.TensorType]:
    if isinstance(ty, relax.TupleType):
        for part in ty.fields:
            yield from _types(part)
    elif isinstance(ty, relax.TensorType):
        yield ty


def _shape(ty: relax.Type) -> Shape | None:
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(dim, tirx.IntImm) for dim in shape.values):
        return None
    return tuple(int(dim) for dim in shape.values)


def _is_parameter(ty: relax.TensorType) -> bool:
    return str(ty.dtype) not in ("int64", "bool")


def _nbytes(types: list[relax.Type]) -> int | None:
    total = 0
    for tensor in (tensor for ty in types for tensor in _types(ty)):
        shape = _shape(tensor)
        if shape is None:
            return None
        total += (math.prod(shape) * tvm.DataType(str(tensor.dtype)).bits + 7) // 8
    return total
