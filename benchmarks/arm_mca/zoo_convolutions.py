"""Distinct two-dimensional convolutions of the zoo's networks."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cpu.workloads import Workload, layer_workloads
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["zoo_convolutions"]


def zoo_convolutions(networks: Sequence[str]) -> dict[ConvWorkload, str]:
    """Return each convolution, with the first network that has it."""
    from tvm_edge import zoo

    found: dict[ConvWorkload, str] = {}
    for name in networks:
        for layer in layer_workloads(zoo.build(name)):
            if layer.kind != "dense" and len(layer.weight) == 4:
                found.setdefault(_workload(layer), name)
    return found


def _workload(layer: Workload) -> ConvWorkload:
    batch, channels, height, width = layer.data
    top, left, bottom, right = layer.pads
    return ConvWorkload(
        batch=batch,
        channels=channels,
        height=height,
        width=width,
        filters=layer.weight[0],
        kernel=(layer.weight[2], layer.weight[3]),
        strides=(layer.strides[0], layer.strides[1]),
        padding=(top, left, bottom, right),
        dilation=(layer.dilations[0], layer.dilations[1]),
        groups=layer.group,
    )
