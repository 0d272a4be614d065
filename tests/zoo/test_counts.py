"""Parameters and multiply-adds are the published ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import pytest

from tests.zoo.networks import CLASSIFIERS, marked
from tvm_edge import zoo


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


@pytest.mark.parametrize("name", marked(CLASSIFIERS))
def test_parameters_of_classifiers(name: str, full: Callable[[str], onnx.ModelProto]) -> None:
    # torchvision, Keras and Gluon publish them to the last digit.
    assert count(full(name)).parameters == zoo.entry(name).parameters


def test_parameters_of_ssd(full: Callable[[str], onnx.ModelProto]) -> None:
    # Open Model Zoo counts, in thousands, the converted graph: a folded normalisation has one
    # number per channel.
    counts = count(full("ssd_mobilenet_v1"))
    folded = counts.weights + counts.normalised_channels
    assert folded == pytest.approx(zoo.entry("ssd_mobilenet_v1").parameters, abs=500)


TOLERANCES = {
    "densenet121": 0.001,  # published in millions: 2834
    "googlenet": 0.001,  # published in millions: 1498
    "inception_v3": 0.005,  # published in millions: 5713
    "mobilenet_v1": 0.002,  # published in millions: 569
    "mobilenet_v2": 0.005,  # published in millions: 300
    "resnet50_v1": 0.02,  # published with two digits: 3.8e9; 4.09e9 would be v1.5
    "resnet50_v2": 0.005,  # published with two digits: 4.1e9
    "shufflenet_v2": 0.005,  # published in millions: 145
    "squeezenet1_0": 0.005,  # published with two digits: 0.82e9
    "ssd_mobilenet_v1": 0.01,  # Open Model Zoo also counts the element-wise operators
    "vgg16": 0.001,  # published in millions: 15470
    "vgg19": 0.001,  # published in millions: 19632
}


@pytest.mark.parametrize("name", marked())
def test_multiply_adds(name: str, full: Callable[[str], onnx.ModelProto]) -> None:
    published = zoo.entry(name).multiply_adds
    assert count(full(name)).multiply_adds == pytest.approx(published, rel=TOLERANCES[name])


@pytest.mark.parametrize(
    ("width", "millions", "millions_of_multiply_adds"), [(0.35, 1.66, 20), (0.5, 1.95, 32)]
)
def test_width_is_the_published_multiplier(
    width: float, millions: float, millions_of_multiply_adds: float
) -> None:
    # The checkpoints mobilenet_v2_*_128 of TF-slim's nets/mobilenet/README.md: parameters without
    # normalisations, multiply-adds in whole millions.
    counts = count(zoo.build("mobilenet_v2", image_size=128, width=width))
    assert counts.weights / 1e6 == pytest.approx(millions, abs=0.01)
    assert counts.multiply_adds / 1e6 == pytest.approx(millions_of_multiply_adds, abs=1)
