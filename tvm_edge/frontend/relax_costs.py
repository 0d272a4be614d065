"""Cost of each operator of a Relax function."""

from __future__ import annotations

import math
from collections.abc import Iterator

import tvm
from tvm import relax, tirx

from tvm_edge.frontend.normal_form import NodeCost, SourceNode
from tvm_edge.ops.flops import Operation, Shape, count
from tvm_edge.ops.registry import find

__all__ = ["call_cost", "source_nodes"]


def source_nodes(main: relax.Function) -> tuple[list[SourceNode], dict[relax.Var, int]]:
    """Return the calls of a function with their costs, and the variables of their results.

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
    made: dict[relax.Var, tuple[int, ...]] = {}  # sources of any value, tuples and names too
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
    """Return the cost of one call."""
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
    if not isinstance(call.op, tvm.ir.Op) or not outputs:
        return None
    own = str(call.op.name)
    # A kernel called by the name of an operator counts as that.
    operator = find(f"relax.{_op_type(call)}" if own.startswith("relax.") else own)
    return count(operator.flops, Operation(inputs, outputs, call.attrs))


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
