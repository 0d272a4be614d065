"""Weights and multiply-adds of a network, counted apart from the product's own way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx


@dataclass(frozen=True)
class Counts:
    weights: int  # of Conv and Gemm, with biases
    normalised_channels: int  # each with a gamma and a beta
    multiply_adds: int  # of Conv and Gemm

    @property
    def parameters(self) -> int:
        return self.weights + 2 * self.normalised_channels


def count(model: onnx.ModelProto) -> Counts:
    """Count from the weights' shapes and from what ONNX's shape inference says of outputs."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shape = {i.name: tuple(i.dims) for i in inferred.initializer}
    for info in (*inferred.value_info, *inferred.output):
        shape[info.name] = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
    weights = channels = multiply_adds = 0
    for node in inferred.node:
        if node.op_type in ("Conv", "Gemm"):
            weights += sum(math.prod(shape[i]) for i in node.input[1:])
            per_output = math.prod(shape[node.input[1]][1:])
            multiply_adds += math.prod(shape[node.output[0]]) * per_output
        elif node.op_type == "BatchNormalization":
            channels += shape[node.input[1]][0]
    return Counts(weights, channels, multiply_adds)
