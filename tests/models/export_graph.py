"""A graph in the making, with the chains that exporters write for shapes and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["INT64_MAX", "ExportGraph"]

INT64_MAX = 2**63 - 1


class ExportGraph:
    """Nodes, weights and inputs; a tensor is its name.

    Parameters
    ----------
    seed : int
        Of weights and inputs.
    opset : int
        The one that the exporter writes by default. It decides where axes stand.
    producer : str
        The exporter.
    outer : ExportGraph, optional
        The graph around this one, if this is a branch of an If.
    """

    def __init__(
        self,
        seed: int = 0,
        opset: int = 17,
        producer: str = "pytorch",
        outer: ExportGraph | None = None,
    ) -> None:
        self.opset, self.producer = opset, producer
        self.random = outer.random if outer else np.random.default_rng(seed)
        self.values: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._count: list[int] = outer._count if outer else [0]

    def name(self, stem: str) -> str:
        """Return a name that nothing in the model has."""
        self._count[0] += 1
        return f"/{stem}_{self._count[0]}"

    # Tensors

    def input(self, name: str, value: Any, dims: Sequence[int | str] | None = None) -> str:
        """Add an input of the value's type; `dims` names the axes that the exporter left open."""
        array = np.asarray(value)
        self.values[name] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, dims or array.shape))
        return name

    def image(
        self, channels: int = 3, size: int = 32, name: str = "images", dynamic: bool = False
    ) -> str:
        """Add a square picture of numbers from 0 to 1."""
        value = self.random.random((1, channels, size, size)).astype("float32")
        return self.input(name, value, ["batch", channels, "height", "width"] if dynamic else None)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Draw normal float32 values."""
        return (scale * self.random.standard_normal(shape)).astype("float32")

    def held(self, value: Any, stem: str = "onnx::Const") -> str:
        """Add an initializer."""
        name = self.name(stem)
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int, scale: float = 0.0) -> str:
        """Add random weights, by default of a variance that keeps that of the data."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 16
        return self.held(self.normal(*shape, scale=scale or fan_in**-0.5), "weight")

    def const(self, value: Any, dtype: str = "") -> str:
        """Add a Constant node; Python's numbers are float32 or int64."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype("float32")
        array = array.astype(dtype) if dtype else array
        made = self.name("Constant_output")
        self._nodes.append(
            helper.make_node("Constant", [], [made], value=numpy_helper.from_array(array))
        )
        return made

    # Nodes

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> tuple[str, ...]:
        """Add a node with several outputs."""
        made = tuple(self.name(f"{kind}_output") for _ in range(outputs))
        name = made[0].replace("_output", "")
        self._nodes.append(helper.make_node(kind, list(inputs), list(made), name, **attributes))
        return made

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def _with_axes(self, kind: str, x: str, axes: Sequence[int], since: int, **more: Any) -> str:
        if self.opset < since:
            return self.op(kind, x, axes=list(axes), **more)
        return self.op(kind, x, self.const(list(axes)), **more)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add an Unsqueeze."""
        return self._with_axes("Unsqueeze", x, axes, 13)

    def squeeze(self, x: str, *axes: int) -> str:
        """Add a Squeeze."""
        return self._with_axes("Squeeze", x, axes, 13)

    def sum(self, x: str, *axes: int, keepdims: int = 0) -> str:
        """Add a ReduceSum."""
        return self._with_axes("ReduceSum", x, axes, 13, keepdims=keepdims)

    def reduce(self, kind: str, x: str, *axes: int, keepdims: int = 1) -> str:
        """Add a ReduceMean, ReduceMax, …."""
        return self._with_axes(kind, x, axes, 18, keepdims=keepdims)

    def split(self, x: str, lengths: Sequence[int], axis: int) -> tuple[str, ...]:
        """Add a Split."""
        if self.opset < 13:
            return self.ops("Split", x, outputs=len(lengths), axis=axis, split=list(lengths))
        return self.ops("Split", x, self.const(list(lengths)), outputs=len(lengths), axis=axis)

    def slice(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Add a Slice, its bounds in Constant nodes."""
        return self.op("Slice", x, *(self.const([n]) for n in (start, end, axis, step)))

    def dim(self, x: str, axis: int) -> str:
        """Add ``x.size(axis)``: Shape and Gather, to a scalar."""
        return self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)

    def vector(self, *parts: int | str) -> str:
        """Add a shape's vector: Unsqueeze of each scalar, and Concat."""
        lengths = [
            self.unsqueeze(part, 0) if isinstance(part, str) else self.const([part])
            for part in parts
        ]
        return self.op("Concat", *lengths, axis=0)

    def view(self, x: str, *parts: int | str) -> str:
        """Add a Reshape to lengths of which those given by name are scalars of the graph."""
        if all(isinstance(part, int) for part in parts):
            return self.op("Reshape", x, self.const(list(parts)))
        return self.op("Reshape", x, self.vector(*parts))

    def transpose(self, x: str, *perm: int) -> str:
        """Add a Transpose."""
        return self.op("Transpose", x, perm=perm)

    # Layers

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        group: int = 1,
        dilation: int = 1,
        bias: bool = True,
        pads: Sequence[int] | None = None,
    ) -> str:
        """Add a convolution that keeps the picture's size but for its stride."""
        h, w = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        low = [dilation * (h // 2), dilation * (w // 2)]
        operands = [x, self.weight(outputs, inputs // group, h, w)]
        if bias:
            operands.append(self.weight(outputs))
        return self.op(
            "Conv",
            *operands,
            dilations=[dilation] * 2,
            group=group,
            kernel_shape=[h, w],
            pads=low * 2 if pads is None else pads,
            strides=[stride] * 2,
        )

    def linear(self, x: str, inputs: int, outputs: int, bias: bool = True) -> str:
        """Add torch's Linear of more than two axes: MatMul, and Add with the bias first."""
        y = self.op("MatMul", x, self.held(self.normal(inputs, outputs, scale=inputs**-0.5)))
        return self.op("Add", self.weight(outputs), y) if bias else y

    def gemm(self, x: str, inputs: int, outputs: int) -> str:
        """Add torch's Linear of two axes."""
        return self.op(
            "Gemm", x, self.weight(outputs, inputs), self.weight(outputs), alpha=1.0, beta=1.0,
            transB=1,
        )  # fmt: skip

    def batch_norm(self, x: str, channels: int) -> str:
        """Add a BatchNormalization that the exporter did not fold."""
        scale, bias, mean = (self.weight(channels) for _ in range(3))
        variance = self.held(self.random.uniform(0.05, 1, channels).astype("float32"))
        return self.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)

    def layer_norm(self, x: str, channels: int) -> str:
        """Add a layer normalisation, one operator since opset 17 and nine before."""
        scale, bias = self.held(1 + self.normal(channels, scale=0.1)), self.weight(channels)
        if self.opset >= 17:
            return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        centred = self.op("Sub", x, self.reduce("ReduceMean", x, -1))
        squares = self.op("Pow", centred, self.const(2.0))
        variance = self.op("Add", self.reduce("ReduceMean", squares, -1), self.const(1e-5))
        normal = self.op("Div", centred, self.op("Sqrt", variance))
        return self.op("Add", self.op("Mul", normal, scale), bias)

    def silu(self, x: str) -> str:
        """Add ``x · sigmoid(x)``."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """Add GELU by the error function."""
        erf = self.op("Erf", self.op("Div", x, self.const(2**0.5)))
        product = self.op("Mul", x, self.op("Add", erf, self.const(1.0)))
        return self.op("Mul", product, self.const(0.5))

    def squeeze_excite(self, x: str, channels: int, inner: int, gate: str = "Sigmoid") -> str:
        """Add a squeeze-and-excitation block."""
        pooled = self.op("GlobalAveragePool", x)
        hidden = self.op("Relu", self.conv(pooled, channels, inner))
        return self.op("Mul", x, self.op(gate, self.conv(hidden, inner, channels)))

    # The model

    def branch(self) -> ExportGraph:
        """Return a graph for a branch of an If."""
        return ExportGraph(opset=self.opset, outer=self)

    def body(self, name: str, *outputs: str, kind: int = onnx.TensorProto.FLOAT) -> onnx.GraphProto:
        """Return this graph as a branch, its outputs without shapes."""
        values = [helper.make_tensor_value_info(output, kind, None) for output in outputs]
        return helper.make_graph(self._nodes, name, [], values, self._weights)

    def model(
        self, *outputs: str, ranks: Sequence[int] = ()
    ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Return the checked model, and its inputs' values.

        Parameters
        ----------
        *outputs : str
        ranks : sequence of int, optional
            Of the outputs, for those that inference does not tell.
        """
        graph = helper.make_graph(
            self._nodes,
            "main_graph",
            self._inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self._weights,
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=8, producer_name=self.producer
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        for value, rank in zip(inferred.graph.output, ranks, strict=False):
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for axis in range(rank):
                shape.dim.add().dim_param = f"{value.name}_dim_{axis}"
        onnx.checker.check_model(inferred)
        return inferred, self.values
