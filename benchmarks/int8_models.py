"""Quantised networks of the zoo, as ONNX Runtime's tool makes them, and how they are compared.

QDQ, weights of int8 by channel, activations of uint8, calibrated on seeded pictures: their least
and largest values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

__all__ = ["DETECTOR", "Difference", "compare", "inputs_of", "quantized", "with_intermediates"]

DETECTOR = "shapes_ssd"
_PICTURES = 16

Feeds = dict[str, NDArray[Any]]


def inputs_of(name: str, seed: int) -> Feeds:
    """A picture for a network."""
    from tvm_edge import zoo
    from tvm_edge.zoo import shapes

    if name == DETECTOR:
        return {"image": shapes.network_input(shapes.draw(seed, "train"))}
    return dict(zoo.sample_input(name, seed=seed))


def quantized(name: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """A network in int8."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Pictures(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            # Not those that are timed and compared.
            self._left: Iterator[Feeds] = iter(inputs_of(name, 100 + i) for i in range(_PICTURES))

        def get_next(self) -> Feeds | None:
            return next(self._left, None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)  # given the model itself, the tool takes its weights out
        quant_pre_process(path, path, skip_symbolic_shape=True)  # folds batch normalisation
        quantize_static(
            onnx.load(path),
            path,
            Pictures(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)


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
    """How far quantised tensors are from ONNX Runtime's.

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
