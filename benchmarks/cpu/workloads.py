"""Workloads of the CPU benchmarks: networks and layers.

The networks of :mod:`benchmarks.cpu.networks`, and the layers of :mod:`benchmarks.cpu.layers`:
every convolution and every product with constant weights of four of the networks, chosen by a rule
from the ONNX graph, not one by one. Networks are the zoo's at their default sizes, batch 1,
float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.options import Parser

__all__ = ["LAYER_NETWORKS", "NETWORKS", "Workload", "layer_workloads"]

NETWORKS = (
    "resnet50_v1",
    "mobilenet_v1",
    "mobilenet_v2",
    "squeezenet1_0",
    "googlenet",
    "shufflenet_v2",
    "vgg19",
    "densenet121",
    "inception_v3",
    "ssd_mobilenet_v1",
    "yolov3",
)
"""Networks of :mod:`benchmarks.cpu.networks`."""

LAYER_NETWORKS = ("resnet50_v1", "mobilenet_v1", "mobilenet_v2", "vgg19")
"""Networks of :mod:`benchmarks.cpu.layers`."""

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Workload:
    """Shapes and attributes that make two layers the same work.

    Attributes
    ----------
    kind : {"convolution", "depthwise", "grouped", "dense"}
        A dense layer is a Gemm or MatMul with constant weights.
    data, weight, output : tuple[int, ...]
        Shapes: NCHW, OIHW and NCHW of a convolution, the matrices of a dense layer.
    strides, pads, dilations : tuple[int, ...]
        As in ONNX; empty for a dense layer.
    group : int
    """

    kind: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    @property
    def flops(self) -> int:
        """Two per multiply-add of the definition, those with padding counted."""
        if self.kind == "dense":
            return 2 * math.prod(self.output) * self.data[-1]
        return 2 * math.prod(self.output) * math.prod(self.weight[1:])

    @property
    def bytes(self) -> int:
        """Data, weights and output, each once."""
        return _FLOAT * sum(math.prod(shape) for shape in (self.data, self.weight, self.output))

    def __str__(self) -> str:
        data, output = _shape(self.data[1:]), _shape(self.output[1:])
        if self.kind == "dense":
            return f"{data} → {output}"
        parts = [f"{data} → {output}", _shape(self.weight[2:])]
        if set(self.strides) != {1}:
            parts.append(f"/{_shape(self.strides[:1])}")
        if set(self.dilations) != {1}:
            parts.append(f"dilation {self.dilations[0]}")
        if self.group > 1:
            parts.append(f"{self.group} groups")
        return " ".join(parts)


def layer_workloads(model: Any) -> dict[Workload, list[str]]:
    """The layers of a network.

    Parameters
    ----------
    model : onnx.ModelProto
        With the shapes of its intermediate tensors, as the zoo's have.

    Returns
    -------
    dict
        Names of the ONNX nodes of each distinct workload, both in the order of the graph.
    """
    graph = model.graph
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes = dict(weights)
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    found: dict[Workload, list[str]] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in weights:
            found.setdefault(_workload(node, shapes), []).append(node.name)
    return found


def _workload(node: Any, shapes: Mapping[str, tuple[int, ...]]) -> Workload:
    import onnx

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    data, weight, output = (shapes[t] for t in (node.input[0], node.input[1], node.output[0]))
    if node.op_type != "Conv":
        return Workload("dense", data, weight, output)
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ValueError(f"{node.name}: auto_pad hides the padding")
    rank, group = len(weight) - 2, attributes.get("group", 1)
    kind = "convolution" if group == 1 else "depthwise" if weight[1] == 1 else "grouped"
    return Workload(
        kind,
        data,
        weight,
        output,
        strides=tuple(attributes.get("strides", [1] * rank)),
        pads=tuple(attributes.get("pads", [0] * 2 * rank)),
        dilations=tuple(attributes.get("dilations", [1] * rank)),
        group=group,
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def main(arguments: Sequence[str]) -> None:
    """Print all of them."""
    from tvm_edge import zoo

    Parser("cpu_workloads", __doc__).parse_args(arguments)
    print("networks:", *NETWORKS)
    for name in LAYER_NETWORKS:
        print(f"\n{name}")
        for workload, nodes in layer_workloads(zoo.build(name)).items():
            print(f"  {workload.kind:11}  {workload!s:48}  {len(nodes)}")
