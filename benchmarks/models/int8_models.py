"""Quantised networks of the zoo, and how they are compared: :mod:`tvm_edge.zoo.quantized`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

__all__ = ["DETECTOR", "Difference", "compare", "inputs_of", "quantized", "with_intermediates"]

DETECTOR = "shapes_ssd"

Feeds = dict[str, NDArray[Any]]


def inputs_of(name: str, seed: int) -> Feeds:
    """A picture for a network."""
    from tvm_edge import zoo
    from tvm_edge.zoo import shapes

    if name == DETECTOR:
        return {"image": shapes.network_input(shapes.draw(seed, "train"))}
    return dict(zoo.sample_input(name, seed=seed))


def quantized(name: str) -> onnx.ModelProto:
    """A network in int8."""
    from tvm_edge import zoo
    from tvm_edge.zoo.quantized import CALIBRATION, quantize, quantized_names

    if f"{name}_int8" in quantized_names():
        return zoo.build(f"{name}_int8")
    # Not the pictures that are compared.
    return quantize(zoo.build(name), (inputs_of(name, seed) for seed in CALIBRATION))


def with_intermediates(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network whose quantised tensors all are outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {value.name for value in made.graph.output}
    for node in made.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] not in known:
            value = helper.make_tensor_value_info(node.output[0], TensorProto.UINT8, None)
            made.graph.output.append(value)
    return made


@dataclass(frozen=True)
class Difference:
    """Distance of quantised tensors from ONNX Runtime's.

    Attributes
    ----------
    tensors : int
    worst : float
        The largest share of a tensor's elements that differ by more than one unit.
    worst_name : str
    different : float
        Share of all elements that differ at all.
    """

    tensors: int
    worst: float
    worst_name: str
    different: float


def compare(actual: Mapping[str, Any], expected: Mapping[str, NDArray[Any]]) -> Difference:
    """Compare the tensors of bytes among the outputs."""
    shares: dict[str, float] = {}
    other = elements = 0
    for name, want in expected.items():
        if want.dtype != np.uint8:
            continue
        apart = np.abs(np.asarray(actual[name]).astype("int32") - want.astype("int32"))
        shares[name] = float(np.mean(apart > 1))
        other += int(np.count_nonzero(apart))
        elements += apart.size
    name = max(shares, key=lambda key: shares[key])
    return Difference(len(shares), shares[name], name, other / max(elements, 1))
