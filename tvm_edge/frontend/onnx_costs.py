"""Cost of each node of an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_edge.frontend.normal_form import NodeCost
from tvm_edge.frontend.onnx_functions import label
from tvm_edge.ops.flops import Operation, Shape, count
from tvm_edge.ops.registry import find
from tvm_edge.ops.small_types import SMALL_TYPES

if TYPE_CHECKING:
    import onnx

__all__ = ["TensorInfo", "fix_lengths", "node_costs", "small_tensors", "tensor_infos"]

# Shape inference needs the values of shapes and axes only.
_SMALL = 1 << 12


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a tensor of the graph, as far as shape inference knows them.

    Attributes
    ----------
    shape : tuple[int, ...] or None
    dtype : int
        ``onnx.TensorProto.DataType``; 0 where unknown.
    constant : bool
        Whether the model holds its value.
    """

    shape: Shape | None
    dtype: int
    constant: bool = False

    @property
    def elements(self) -> int | None:
        """Number of elements; ``None`` if the shape is not known."""
        return None if self.shape is None else math.prod(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes as ONNX stores them; ``None`` if shape or type is not known or has no size."""
        import onnx_ir

        try:
            bits = onnx_ir.DataType(self.dtype).bitwidth
        except TypeError:  # strings, and no type at all
            return None
        return None if self.elements is None else (self.elements * bits + 7) // 8


def node_costs(proto: onnx.ModelProto, typical: Mapping[str, int] | None = None) -> list[NodeCost]:
    """Return the cost of every node of the main graph, in order.

    Parameters
    ----------
    proto : onnx.ModelProto
        Checked. Constants are best folded before.
    typical : mapping of str to int, optional
        Lengths of open dimensions of inputs.
    """
    tensors = tensor_infos(proto, typical)
    return [_cost(node, tensors) for node in proto.graph.node]


def tensor_infos(
    proto: onnx.ModelProto, typical: Mapping[str, int] | None = None
) -> dict[str, TensorInfo]:
    """Return every tensor of the main graph by name: inputs, constants, results of nodes.

    Parameters
    ----------
    proto : onnx.ModelProto
    typical : mapping of str to int, optional
        Lengths of open dimensions of inputs; without them shapes with such are not known.
    """
    import onnx

    light = _without_weights(proto)
    if typical:
        fix_lengths(light.graph, typical)
    try:
        inferred = onnx.shape_inference.infer_shapes(light)
        if not _long_integers(inferred.graph):
            inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
        graph = inferred.graph
    except onnx.shape_inference.InferenceError:  # what follows in the import says more
        graph = light.graph
    tensors = {
        value.name: TensorInfo(_static(value.type.tensor_type), value.type.tensor_type.elem_type)
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.HasField("tensor_type")
    }
    for tensor in proto.graph.initializer:
        tensors[tensor.name] = TensorInfo(tuple(tensor.dims), tensor.data_type, constant=True)
    for node in proto.graph.node:
        if node.op_type == "Constant" and not node.domain and node.output[0] in tensors:
            known = tensors[node.output[0]]
            tensors[node.output[0]] = TensorInfo(known.shape, known.dtype, constant=True)
    return tensors


def fix_lengths(graph: onnx.GraphProto, lengths: Mapping[str, int]) -> None:
    """Write lengths for the names of dimensions of inputs; what depends on them is inferred."""
    graph.ClearField("value_info")
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in lengths:
                dim.dim_value = lengths[dim.dim_param]


def _long_integers(graph: onnx.GraphProto) -> bool:
    """Return whether a vector of integers is too long to be a shape.

    To follow shapes that are computed, onnx lists the elements of every such vector, and a file
    can name any length.
    """
    import onnx

    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type in integers and len(tensor.shape.dim) == 1:
            if tensor.shape.dim[0].dim_value > _SMALL:
                return True
    return False


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Make large initializers inputs: inference copies the whole model twice."""
    import onnx

    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.value_info.extend(proto.graph.value_info)
    declared = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def _static(tensor_type: onnx.TypeProto.Tensor) -> Shape | None:
    dims = tensor_type.shape.dim
    if not tensor_type.HasField("shape") or not all(
        d.HasField("dim_value") and d.dim_value >= 0 for d in dims
    ):
        return None
    return tuple(d.dim_value for d in dims)


def _cost(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo]) -> NodeCost:
    import onnx

    unknown = TensorInfo(None, 0)
    inputs = [tensors.get(name, unknown) if name else None for name in node.input]
    outputs = [tensors.get(name, unknown) for name in node.output if name]
    operator = find(label(node))
    # Shapes, axes and indices, which are of int64 or bool, are no parameters of a network either.
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)
    # A tensor that is read twice, as in x * x, is there once.
    constants = {
        name: (tensor, at not in operator.settings and tensor.dtype not in integers)
        for at, (name, tensor) in enumerate(zip(node.input, inputs, strict=True))
        if tensor is not None and tensor.constant
    }
    computed = {
        name: tensor
        for name, tensor in zip(node.input, inputs, strict=True)
        if tensor is not None and not tensor.constant
    }
    operation = Operation(
        [None if tensor is None else tensor.shape for tensor in inputs],
        [tensor.shape for tensor in outputs],
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
    )
    return NodeCost(
        flops=count(operator.flops, operation),
        parameters=sum(t.elements or 0 for t, parameter in constants.values() if parameter),
        weight_bytes=sum(t.nbytes or 0 for t, _ in constants.values()),
        input_bytes=_total(t.nbytes for t in computed.values()),
        output_bytes=_total(t.nbytes for t in outputs),
    )


def _total(sizes: Iterable[int | None]) -> int | None:
    """Return the sum; ``None`` if one is not known."""
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


def small_tensors(proto: onnx.ModelProto) -> dict[str, str]:
    """Return names and types of the tensors whose type is stored as uint8.

    Empty, without a look at every node, for a model that names no such type.
    """
    import onnx

    numbers = {
        number: dtype.name
        for number in onnx.TensorProto.DataType.values()
        if number and (dtype := _numpy_type(number)) is not None and dtype.name in SMALL_TYPES
    }
    named = {
        value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)
    }
    named |= {tensor.data_type for tensor in proto.graph.initializer}
    named |= {
        attribute.i
        for node in proto.graph.node
        for attribute in node.attribute
        if attribute.name in ("to", "output_dtype", "dtype")
    }
    if named.isdisjoint(numbers):
        return {}
    tensors = tensor_infos(proto)
    return {name: numbers[info.dtype] for name, info in tensors.items() if info.dtype in numbers}


def _numpy_type(number: int) -> Any:
    import onnx

    try:
        return onnx.helper.tensor_dtype_to_np_dtype(number)
    except (KeyError, ValueError, TypeError):  # a type that NumPy has no name for
        return None
