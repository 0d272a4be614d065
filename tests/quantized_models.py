"""Quantised models: written node by node, and as ONNX Runtime's tool writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import tvm_edge
from tests.onnx_models import make_model, reference, session

TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
MOST_DIFFERENT = 1e-3
"""The share of elements that may differ by more than one unit in the last place."""
AWKWARD: dict[str, tuple[tuple[int, ...], tuple[int, int, int, int], dict[str, Any]]] = {
    "first layer": ((1, 3, 13, 15), (16, 3, 7, 7), {"pads": [3, 2, 3, 3], "strides": [2, 2]}),
    "one channel": ((2, 1, 9, 9), (24, 1, 3, 3), {"pads": [0, 1, 2, 0]}),
    "filled up": ((1, 24, 7, 9), (40, 24, 3, 3), {"pads": [1, 1, 1, 1]}),
    "pixels left over": ((1, 32, 5, 13), (64, 32, 1, 1), {}),
    "one pixel": ((3, 64, 1, 1), (48, 64, 1, 1), {}),
    "dilated": ((1, 16, 14, 11), (16, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "strided": ((2, 32, 9, 12), (32, 32, 1, 1), {"strides": [2, 3]}),
    "groups": ((1, 64, 6, 7), (32, 32, 3, 3), {"pads": [1] * 4, "group": 2}),
    "depthwise": ((1, 32, 12, 13), (32, 1, 3, 3), {"pads": [1] * 4, "group": 32}),
    "depthwise, strided": (
        (2, 40, 11, 9),
        (40, 1, 5, 5),
        {"pads": [2, 1, 2, 3], "group": 40, "strides": [2, 2]},
    ),
    "depthwise, one line": ((1, 16, 1, 30), (16, 1, 1, 7), {"pads": [0, 3, 0, 3], "group": 16}),
    "depthwise, dilated down": (
        (1, 16, 14, 9),
        (16, 1, 3, 2),
        {"pads": [2, 0, 2, 1], "group": 16, "dilations": [2, 1]},
    ),
}
"""Shapes of an image and of filters, and attributes, of convolutions."""


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Any numbers of an integer type."""
    limits = np.iinfo(dtype)
    random = np.random.default_rng(seed)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


class QuantizedGraph:
    """Nodes between QuantizeLinear and DequantizeLinear; tensors are names.

    Parameters
    ----------
    seed : int
    dtype : {"uint8", "int8"}
        Of activations.
    """

    def __init__(self, seed: int = 0, dtype: str = "uint8") -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = dtype
        self.values: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: str) -> str:
        """A constant's name."""
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output."""
        made = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, list(inputs), [made], name=name or made, **attributes)
        )
        return made

    def input(self, *shape: int, zero: int | None = None, scale: float = 0.05) -> str:
        """A random quantised input, as real numbers."""
        limits = np.iinfo(self.dtype)
        name = f"x{len(self.values)}"
        self.values[name] = self.random.integers(
            limits.min, limits.max, shape, self.dtype, endpoint=True
        )
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return self.real(name, scale, self._zero(zero), self.dtype)

    def _zero(self, zero: int | None) -> int:
        limits = np.iinfo(self.dtype)
        return int(self.random.integers(limits.min, limits.max)) if zero is None else zero

    def real(self, name: str, scale: Any, zero: Any, dtype: str, axis: int = 0) -> str:
        """A DequantizeLinear."""
        parameters = self.constant(scale, "float32"), self.constant(zero, dtype)
        attributes = {"axis": axis} if np.ndim(scale) else {}
        return self.op("DequantizeLinear", name, *parameters, **attributes)

    def quantized(self, name: str, scale: float, zero: int | None = None) -> str:
        """A QuantizeLinear, which is an output, and the DequantizeLinear behind it."""
        own = self._zero(zero)
        parameters = self.constant(scale, "float32"), self.constant(own, self.dtype)
        made = self.op("QuantizeLinear", name, *parameters)
        self.output(made, self.dtype)
        return self.real(made, scale, own, self.dtype)

    def output(self, name: str, dtype: str = "float32") -> None:
        """Make a tensor an output."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._outputs.append(helper.make_tensor_value_info(name, kind, None))

    def conv(
        self,
        data: str,
        shape: tuple[int, int, int, int],
        *,
        scale: float = 0.05,
        per_channel: bool = True,
        name: str = "",
        **attributes: Any,
    ) -> str:
        """A convolution with a bias; `scale` is that of the data."""
        count = shape[0] if per_channel else 1
        scales = self.random.uniform(0.5, 1.5, count) / (40 * np.sqrt(np.prod(shape[1:])))
        scales = np.asarray(scales if per_channel else scales[0], "float32")
        numbers = self.random.integers(-128, 128, shape, "int8")
        weights = self.real(
            self.constant(numbers, "int8"), scales, np.zeros_like(scales, "int8"), "int8"
        )
        product = np.asarray(np.float32(scale) * scales, "float32")
        bias = self.random.integers(-9000, 9000, shape[0], "int32")
        shift = self.real(
            self.constant(bias, "int32"), product, np.zeros_like(product, "int32"), "int32"
        )
        return self.op("Conv", data, weights, shift, name=name, **attributes)

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, "quantised", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", 19)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


class _Pictures(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto, count: int) -> None:
        self._left = iter([inputs_of(model, seed) for seed in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Normally distributed inputs of float32."""
    random = np.random.default_rng(seed)
    return {
        value.name: random.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype("float32")
        for value in model.graph.input
    }


def quantized(
    model: onnx.ModelProto,
    *,
    form: str = "QDQ",
    activations: str = "uint8",
    per_channel: bool = True,
) -> onnx.ModelProto:
    """Quantise a model by ``onnxruntime.quantization.quantize_static``; all tensors are kept.

    Parameters
    ----------
    form : {"QDQ", "QOperator"}
    activations : {"uint8", "int8"}
    per_channel : bool
        Of weights.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        quant_pre_process(path, path, skip_symbolic_shape=True)
        quantize_static(
            onnx.load(path),
            path,
            _Pictures(model, 2),
            quant_format=QuantFormat[form],
            per_channel=per_channel,
            activation_type=TYPES[activations],
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)


def with_intermediates(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose quantised tensors are outputs."""
    constants = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if not node.op_type.startswith(("Quantize", "QLinear", "QGemm")):
            continue
        first = node.input[1] if node.op_type == "QLinearConcat" else node.input[-1]
        zeros = [constants.get(name) for name in (first, *reversed(node.input))]
        kind = next(z for z in zeros if z in (TensorProto.UINT8, TensorProto.INT8))
        if node.output[0] not in known:
            value = helper.make_tensor_value_info(node.output[0], kind, None)
            model.graph.output.append(value)
    return with_output_shapes(model)


def with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with the shapes of its outputs, which ONNX does not infer behind other domains."""
    for value, made in zip(model.graph.output, session(model).get_outputs(), strict=True):
        value.type.tensor_type.shape.ClearField("dim")
        for length in made.shape:
            value.type.tensor_type.shape.dim.add().dim_value = length
    return model


def assert_same_numbers(
    compiled: tvm_edge.CompiledModel, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> None:
    """All quantised outputs are ONNX Runtime's within one unit, and most of them exactly."""
    ours = compiled.run(inputs)
    expected = reference(model, inputs)
    assert expected
    for name, want in expected.items():
        assert ours[name].dtype == want.dtype and ours[name].shape == want.shape, name
        if want.dtype.kind == "f":
            scale = max(float(np.abs(want).max()), 1e-6)
            assert np.abs(ours[name] - want).max() <= 0.03 * scale, name
            continue
        difference = np.abs(ours[name].astype("int32") - want.astype("int32"))
        share = np.mean(difference > 1)
        assert share <= MOST_DIFFERENT, f"{name}: {share:.2%} by up to {difference.max()}"
        assert np.mean(difference > 0) <= 0.02, f"{name}: {np.mean(difference > 0):.2%} differ"
        assert want.size < 64 or len(np.unique(want)) > 8, f"{name} is as good as constant"


def rules_of(compiled: tvm_edge.CompiledModel, operator: str) -> set[str]:
    """The rules of the kernels that compute an operator."""
    return {k.rule for k in compiled.report.kernels if operator in k.operators}


def network() -> onnx.ModelProto:
    """Every way that whole numbers go: first layer, inverted residual, pools, dense layer."""
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        scale = max(np.prod(shape[1:]), 1) ** -0.5
        weights[name] = random.normal(0, scale, shape).astype("float32")
        return name

    def conv(x: str, filters: int, channels: int, size: int, **attributes: Any) -> str:
        own = channels // attributes.get("group", 1)
        pads = [size // 2] * 4
        operands = (weight(filters, own, size, size), weight(filters))
        return op("Conv", x, *operands, pads=pads, **attributes)

    def relu6(x: str) -> str:
        weights.setdefault("low", np.float32(0))
        weights.setdefault("high", np.float32(6))
        return op("Clip", x, "low", "high")

    x = op("Relu", conv("image", 24, 3, 3, strides=[2, 2]))
    x = op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    wide = relu6(conv(x, 96, 24, 1))
    deep = relu6(conv(wide, 96, 96, 3, group=96))
    x = op("Add", conv(deep, 24, 96, 1), x)
    strided = relu6(conv(x, 24, 24, 5, group=24, strides=[2, 2]))
    x = op("Concat", conv(strided, 16, 24, 1), op("Relu", conv(strided, 32, 24, 3)), axis=1)
    x = op("GlobalAveragePool", x)
    x = op("Flatten", x)
    x = op("Gemm", x, weight(24, 48), weight(24), transB=1)
    return make_model(nodes, {"image": (1, 3, 37, 45)}, [x], weights)
