"""Convolutions without local memory: against ONNX Runtime, and what their code looks like."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.schedules.gpu.harness import (
    MALI,
    ORIN,
    TINY,
    assert_golden,
    check_gpu,
    gpu_functions,
    launches,
    opencl_source,
    rules,
)
from tests.schedules.harness import Graph
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.gpu.direct_conv import DirectConv


def conv(
    *data: int, outputs: int, kernel: tuple[int, ...], residual: bool = False, **attributes: Any
) -> Graph:
    """A convolution with constant filters, a bias, maybe an image added, and a ReLU."""
    graph = Graph()
    rng = np.random.default_rng(outputs)
    terms = data[1] // attributes.get("group", 1)
    filters = rng.normal(size=(outputs, terms, *kernel)) / (terms * prod(kernel)) ** 0.5
    image = graph.input(*data)
    bias = graph.constant(rng.normal(size=outputs))
    result = graph.op("Conv", image, graph.constant(filters), bias, **attributes)
    if residual:
        result = graph.op("Add", result, image)
    graph.output(graph.op("Relu", result))
    return graph


CONVOLUTIONS = {
    "3x3": conv(1, 20, 12, 16, outputs=24, kernel=(3, 3), pads=[1] * 4),
    "7x7-image": conv(1, 32, 7, 7, outputs=64, kernel=(3, 3), pads=[1] * 4),
    "odd-channels": conv(2, 5, 9, 13, outputs=15, kernel=(3, 3), pads=[1] * 4),
    "stride": conv(1, 8, 17, 23, outputs=12, kernel=(3, 3), strides=[2, 2], pads=[1] * 4),
    "stem": conv(1, 3, 33, 37, outputs=16, kernel=(7, 7), strides=[2, 2], pads=[3] * 4),
    "dilated": conv(1, 8, 15, 14, outputs=8, kernel=(3, 2), dilations=[2, 3], pads=[2, 0, 1, 3]),
    "grouped": conv(1, 16, 10, 11, outputs=24, kernel=(3, 3), group=2, pads=[1] * 4),
    "odd-groups": conv(1, 9, 10, 11, outputs=15, kernel=(3, 3), group=3, pads=[1] * 4),
    "1x1": conv(1, 24, 14, 14, outputs=40, kernel=(1, 1)),
    "1x1-stride": conv(1, 8, 15, 15, outputs=12, kernel=(1, 1), strides=[2, 2]),
    "narrow": conv(1, 16, 40, 3, outputs=8, kernel=(3, 3), pads=[1] * 4),
    "residual": conv(1, 24, 14, 14, outputs=24, kernel=(3, 3), pads=[1] * 4, residual=True),
    "residual-odd": conv(1, 10, 9, 9, outputs=10, kernel=(3, 3), pads=[1] * 4, residual=True),
}

DEPTHWISE = {
    "3x3": conv(1, 12, 17, 15, outputs=12, kernel=(3, 3), group=12, pads=[1] * 4),
    "stride": conv(
        2, 6, 16, 20, outputs=6, kernel=(3, 3), group=6, strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "5x5-dilated": conv(
        1, 3, 21, 22, outputs=3, kernel=(5, 5), group=3, dilations=[2, 2], pads=[4] * 4
    ),
    "narrow": conv(1, 8, 30, 1, outputs=8, kernel=(3, 1), group=8, pads=[1, 0, 1, 0]),
    "residual": conv(1, 8, 13, 13, outputs=8, kernel=(3, 3), group=8, pads=[1] * 4, residual=True),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, small_gpu: None) -> None:
    """pocl's local memory is main memory, as Mali's."""
    assert rules(check_gpu(CONVOLUTIONS[name], "opencl")) == {"direct"}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("size", ["small_gpu", "large_gpu"])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name: str, size: str, gpu: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(size)
    assert rules(check_gpu(DEPTHWISE[name], gpu)) == {"direct"}


def test_nothing_is_written_behind_the_last_channel(small_gpu: None) -> None:
    """Three channels of a tile of four; in its place in memory is what was written before."""
    graph = Graph()
    image = graph.input(1, 8, 12, 12)
    filters = [np.random.default_rng(n).normal(size=(n, 8, 3, 3)) / 9 for n in (12, 15)]
    second, first = (graph.op("Conv", image, graph.constant(f), pads=[1] * 4) for f in filters)
    graph.output(graph.op("Exp", graph.op("Concat", first, second, axis=1)))
    kernels = check_gpu(graph, "opencl")
    assert sum(kernel.name.endswith("_in_place") for kernel in kernels) == 2


# ----------------------------------------------------------------------------------- the sources


def only_function(graph: Graph) -> tirx.PrimFunc:
    (func,) = (f for _, f in gpu_functions(graph.model()).functions_items() if is_kernel(f))
    return func


def is_kernel(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc)


def source(graph: Graph, target: str) -> str:
    """Return the source of a network's only kernel for a device."""
    resolved = resolve_target(target)
    made = schedule(only_function(graph), resolved.spec)
    assert made.rule == "direct"
    main = made.func.with_attr("global_symbol", "main")
    return str(tvm.compile(main, target=resolved.target).mod.imports[0].inspect_source())


def test_mali_reads_vectors_and_has_no_local_memory() -> None:
    text = source(CONVOLUTIONS["3x3"], "mali-t860")
    assert "__local" not in text and "barrier" not in text
    # Three lines of a window: four channels' filters three times, six columns as 4 and 2.
    assert len(re.findall(r"vload4\(0, \(?\(?__global float ?\*\)?_?\w+ \+", text)) >= 3
    assert "vload2(0, ((__global" in text
    # Sums of four channels are one vector.
    assert re.search(r"vstore4\(\(vload4\(0, \w+ \+ 0\) \+ \(vload4", text)


def test_golden_source_of_a_mali_convolution() -> None:
    assert_golden(source(CONVOLUTIONS["3x3"], "mali-t860"), "mali_t860_conv.cl")


@pytest.mark.parametrize("precision, products", [("mixed", "float4"), ("float16", "half4")])
def test_float16_is_read_as_it_is_stored(precision: str, products: str) -> None:
    """Vectors of half; multiplied as float, or as half with sums of a window in half."""
    text = opencl_source(CONVOLUTIONS["3x3"].model(), "mali-t860", precision)
    assert "vload4(0, ((__global half" in text
    assert not re.search(r"= \(?convert_float\w*\(?\(?_ptr\w*\[", text)
    adding = [line for line in text.splitlines() if "vstore4((" in line and " * " in line]
    assert len(adding) > 20
    assert all(("convert_float4" in line) == (products == "float4") for line in adding)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("spec", [MALI, ORIN, TINY], ids=lambda spec: spec.key)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_grids_fit_the_device(name: str, spec: DeviceSpec) -> None:
    found = DirectConv.of(only_function(DEPTHWISE[name]))
    assert found is not None
    made = schedule(only_function(DEPTHWISE[name]), spec)
    (launch,) = launches(made.func)
    assert launch.items <= spec.max_work_group_size


def test_items_are_small_where_the_device_is_large() -> None:
    """Several outputs an item where there are enough of them, else one."""
    graph = conv(1, 32, 56, 56, outputs=32, kernel=(3, 3), group=32, pads=[1] * 4)
    found = DirectConv.of(only_function(graph))
    assert found is not None
    small, large = (found.choose_tile(replace(ORIN, cores=cores)) for cores in (4, 400))
    assert small.lines * small.columns == 8
    assert large.lines * large.columns == 1


def test_filters_that_only_look_packed() -> None:
    """A 3-D convolution with a window four wide has five channels, taken one by one."""
    graph = conv(1, 2, 5, 6, 7, outputs=5, kernel=(2, 2, 4))
    found = DirectConv.of(only_function(graph))
    assert found is not None
    assert found.choose_tile(MALI).channels == 1


def test_long_windows_are_left_to_others() -> None:
    graph = conv(1, 4, 20, 20, outputs=4, kernel=(9, 9), group=4, pads=[4] * 4)
    assert DirectConv.of(only_function(graph)) is None
    assert schedule(only_function(graph), MALI).rule == "depthwise"
