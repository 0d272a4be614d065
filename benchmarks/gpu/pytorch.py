"""A convolution network of the zoo in PyTorch: the same nodes with the same weights, on cuDNN.

Batch normalisation is folded into the convolution before it, and activations overwrite their
operands, as a user who deploys with PyTorch would have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

__all__ = ["graphed", "network"]

Step = tuple[Callable[..., torch.Tensor], list[str], str]


def network(
    model: onnx.ModelProto, device: str, dtype: torch.dtype = torch.float32
) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """The function of a model of one input; float16 has its channels last."""
    weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    steps = _steps(model.graph, weights)
    constants = {
        name: _constant(torch.from_numpy(np.array(array)).to(device), dtype)
        for name, array in weights.items()
    }
    (given,), results = ([v.name for v in vs] for vs in (model.graph.input, model.graph.output))
    last = {name: i for i, (_, names, _) in enumerate(steps) for name in names}

    def run(data: torch.Tensor) -> list[torch.Tensor]:
        values = {given: data}
        for i, (call, names, out) in enumerate(steps):
            values[out] = call(*(constants.get(n, values.get(n)) for n in names))
            for name in names:
                if last[name] == i and name not in (given, *results):
                    values.pop(name, None)
        return [values[result] for result in results]

    return run


def _constant(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float32 or value.dtype != torch.float32:
        return value
    last = torch.channels_last if value.ndim == 4 else torch.contiguous_format
    return value.to(dtype, memory_format=last)


def graphed(run: Callable[[torch.Tensor], Any], data: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one call, whose algorithms cuDNN has chosen by measurement."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            run(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        run(data)
    return graph


def convolutional_part(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without what no operator here calculates: boxes of a detector."""
    known = {each.name for each in (*model.graph.input, *model.graph.initializer)}
    made: set[str] = set()
    read = {each.name for each in model.graph.output}
    for node in model.graph.node:
        if node.op_type in _CALLS and all(name in known or not name for name in node.input):
            known.update(node.output)
            made.update(node.output)
        else:
            read.update(node.input)
    results = [name for node in model.graph.node for name in node.output if name in made & read]
    if results == [each.name for each in model.graph.output]:
        return model
    inputs = [each.name for each in model.graph.input]
    return onnx.utils.Extractor(onnx.shape_inference.infer_shapes(model)).extract_model(
        inputs, results
    )


def _steps(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> list[Step]:
    """Nodes as calls, in order."""
    steps: list[Step] = []
    convolutions: dict[str, onnx.NodeProto] = {}
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    for node in graph.node:
        before = convolutions.get(node.input[0])
        if node.op_type == "BatchNormalization" and before and readers[node.input[0]] == 1:
            names = _folded(before, node, weights)
            at = next(i for i, step in enumerate(steps) if step[2] == node.input[0])
            steps[at] = (steps[at][0], names, node.output[0])
            continue
        if node.op_type == "Conv":
            convolutions[node.output[0]] = node
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        call = _CALLS[node.op_type](attributes, [weights.get(n) for n in node.input])
        names = [n for n in node.input if n]
        if node.op_type in ("Clip", "Resize"):
            names = names[:1]  # the others are constants
        steps.append((call, names, node.output[0]))
    return steps


def _folded(
    conv: onnx.NodeProto, norm: onnx.NodeProto, weights: dict[str, np.ndarray]
) -> list[str]:
    """The operands of a convolution that normalises too."""
    scale, shift, mean, variance = (weights[n].astype("float64") for n in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    weight = weights[conv.input[1]]
    bias = weights[conv.input[2]] if len(conv.input) > 2 else 0
    names = [f"{norm.output[0]}.weight", f"{norm.output[0]}.bias"]
    weights[names[0]] = (weight * factor[:, None, None, None]).astype("float32")
    weights[names[1]] = ((bias - mean) * factor + shift).astype("float32")
    return [conv.input[0], *names]


def _padded(attributes: dict[str, Any], data: torch.Tensor, value: float) -> torch.Tensor:
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    if not any((top, left, bottom, right)):
        return data
    return functional.pad(data, (left, right, top, bottom), value=value)


def _symmetric(attributes: dict[str, Any]) -> list[int] | None:
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    return [top, left] if (top, left) == (bottom, right) else None


def _conv(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    pads = _symmetric(attributes)

    def call(data: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(
            data if pads is not None else _padded(attributes, data, 0),
            weight,
            bias[0] if bias else None,
            attributes.get("strides", [1, 1]),
            pads or [0, 0],
            attributes.get("dilations", [1, 1]),
            attributes.get("group", 1),
        )

    return call


def _max_pool(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    pads, ceil = _symmetric(attributes), bool(attributes.get("ceil_mode", 0))

    def call(data: torch.Tensor) -> torch.Tensor:
        if pads is None:
            padded = _padded(attributes, data, float("-inf"))
            return functional.max_pool2d(padded, kernel, strides, 0, 1, ceil)
        return functional.max_pool2d(data, kernel, strides, pads, 1, ceil)

    return call


def _average_pool(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    pads, ceil = _symmetric(attributes), bool(attributes.get("ceil_mode", 0))
    counted = bool(attributes.get("count_include_pad", 0))
    assert pads is not None
    return lambda data: functional.avg_pool2d(data, kernel, strides, pads, ceil, counted)


def _gemm(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    assert attributes.get("transB", 0)
    return lambda data, weight, bias: functional.linear(data, weight, bias)


def _normalise(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    epsilon = attributes.get("epsilon", 1e-5)
    return lambda data, scale, shift, mean, variance: functional.batch_norm(
        data, mean, variance, scale, shift, False, 0.0, epsilon
    )


def _clip(_: dict[str, Any], operands: list[Any]) -> Callable[..., torch.Tensor]:
    low, high = (float(o) for o in operands[1:3])
    return lambda data: data.clamp_(low, high)


def _leaky_relu(attributes: dict[str, Any], _: Any) -> Callable[..., torch.Tensor]:
    slope = attributes.get("alpha", 0.01)
    return lambda data: functional.leaky_relu_(data, slope)


def _resize(attributes: dict[str, Any], operands: list[Any]) -> Callable[..., torch.Tensor]:
    assert attributes["mode"] == b"nearest"
    size = [int(each) for each in operands[3][2:]]
    return lambda data: functional.interpolate(data, size)


_CALLS: dict[str, Callable[[dict[str, Any], list[Any]], Callable[..., torch.Tensor]]] = {
    "Add": lambda _, __: lambda a, b: a + b,
    "AveragePool": _average_pool,
    "BatchNormalization": _normalise,
    "Clip": _clip,
    "Concat": lambda attributes, _: lambda *parts: torch.cat(parts, attributes["axis"]),
    "Conv": _conv,
    "Flatten": lambda _, __: lambda data: data.flatten(1),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, __: lambda data: data.mean((2, 3), keepdim=True),
    "LeakyRelu": _leaky_relu,
    "MaxPool": _max_pool,
    "Relu": lambda _, __: lambda data: data.relu_(),
    "Resize": _resize,
}
