"""GPU kernels of open lengths: the rules that take them, and their results at awkward lengths."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import tirx

import tvm_edge
from tests.compiler.steps import lowered
from tests.marks import needs_opencl
from tests.onnx_models import reference
from tests.schedules.gpu.harness import MALI, ORIN, gpu_functions
from tests.schedules.harness import Graph, assert_close
from tvm_edge import Dim, InputError
from tvm_edge.compiler.build import build
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.open_lengths import MOST_ELEMENTS, NARROW, has_open_lengths

pytestmark = needs_opencl

Sizes = Mapping[str, int]


def images(*sizes: tuple[int, int, int]) -> list[Sizes]:
    return [dict(zip("nhw", size, strict=True)) for size in sizes]


# One pixel, primes, tiles and one more or less; a batch of none.
IMAGES = images((1, 1, 1), (2, 13, 17), (1, 4, 4), (3, 5, 3), (1, 33, 31), (0, 8, 8))


def conv(
    graph: Graph,
    image: str,
    channels: tuple[int, int],
    kernel: int,
    group: int = 1,
    stride: int = 1,
) -> str:
    inputs, outputs = channels
    rng = np.random.default_rng(outputs)
    filters = rng.normal(size=(outputs, inputs // group, kernel, kernel))
    return graph.op(
        "Relu",
        graph.op(
            "Conv",
            image,
            graph.constant(filters / kernel),
            graph.constant(rng.normal(size=outputs)),
            pads=[kernel // 2] * 4,
            strides=[stride] * 2,
            group=group,
        ),
    )


def image_of(graph: Graph, channels: int) -> str:
    return graph.input(1, channels, 8, 8, symbolic="n?hw")


def check(graph: Graph, sizes: Sequence[Sizes], typical: Sizes | None = None) -> list[str]:
    """Compare a graph, compiled once, with ONNX Runtime at each of some lengths; list the rules."""
    model = graph.model()
    dims = {name: Dim(name, min=0, typical=typical[name]) for name in typical or ()}
    shapes = {
        value.name: [dims.get(d.dim_param, d.dim_param) or d.dim_value for d in shape_of(value)]
        for value in model.graph.input
    }
    compiled = tvm_edge.compile(model, "opencl", input_shapes=shapes, fallback="none")
    rng = np.random.default_rng(0)
    for own in sizes:
        values = {}
        for value in model.graph.input:
            shape = [own.get(d.dim_param, d.dim_value) for d in shape_of(value)]
            values[value.name] = rng.normal(size=shape).astype("float32")
        actual = compiled.run(values)
        for name, expected in reference(model, values).items():
            assert_close(actual[name], expected, f"{name} at {own}")
    return [kernel.rule for kernel in compiled.report.kernels]


def shape_of(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim


def convolutions() -> Graph:
    """The second ones of a chain have lengths that the first one's are calculated from."""
    graph = Graph()
    strided = conv(graph, image_of(graph, 3), (3, 6), 3, stride=2)
    deep = conv(graph, strided, (6, 8), 1)
    deep = graph.op("Add", conv(graph, deep, (8, 8), 3), deep)
    graph.output(conv(graph, deep, (8, 8), 3, group=8))
    return graph


def test_convolutions_without_local_memory(small_gpu: None) -> None:
    found = check(convolutions(), IMAGES)
    assert found.count("direct") == 4 and set(found) <= {"direct", "elementwise", "flat"}


def test_convolutions_through_local_memory(large_gpu: None) -> None:
    graph = Graph()
    image = image_of(graph, 3)
    wide = conv(graph, conv(graph, image, (3, 32), 3), (32, 40), 1)
    graph.output(conv(graph, wide, (40, 40), 3, group=40))
    typical = {"n": 1, "h": 20, "w": 20}
    assert check(graph, IMAGES, typical) == ["tiled", "tiled", "direct"]


def test_winograd(large_gpu: None) -> None:
    graph = Graph()
    image = conv(graph, image_of(graph, 3), (3, 64), 1)
    for _ in range(2):
        image = conv(graph, image, (64, 64), 3)
    graph.output(image)
    winograd = ["handwritten", "tiled", "winograd_output"]
    assert check(graph, IMAGES, {"n": 1, "h": 56, "w": 56}) == ["conv2d", *winograd, *winograd]


def test_parts_of_a_reduction(large_gpu: None) -> None:
    """Few pixels of many channels: work-groups share a reduction, in workspace of open size."""
    graph = Graph()
    graph.output(conv(graph, image_of(graph, 256), (256, 32), 1))
    sizes = images((1, 1, 1), (2, 5, 7), (0, 3, 3), (1, 9, 9))
    assert check(graph, sizes, {"n": 1, "h": 7, "w": 7}) == ["tiled"]


def test_convolutions_of_other_ranks(small_gpu: None) -> None:
    graph = Graph()
    signal = graph.input(1, 8, 16, symbolic="n?w")
    filters = graph.constant(np.random.default_rng(0).normal(size=(12, 8, 3)))
    graph.output(graph.op("Relu", graph.op("Conv", signal, filters, pads=[1, 1])))
    sizes = [{"n": 1, "w": 1}, {"n": 2, "w": 129}, {"n": 1, "w": 37}, {"n": 0, "w": 4}]
    assert check(graph, sizes, {"n": 4, "w": 64}) == ["conv2d"]


def test_windows(small_gpu: None) -> None:
    graph = Graph()
    image = image_of(graph, 5)
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    graph.output(graph.op("Relu", graph.op("MaxPool", image, **attributes)))
    graph.output(graph.op("AveragePool", image, **attributes))
    # A window of more steps than are unrolled.
    graph.output(conv(graph, image, (5, 5), 9, group=5))
    assert sorted(check(graph, IMAGES)) == ["depthwise", "pool", "pool"]


def test_products(small_gpu: None) -> None:
    graph = Graph()
    weights = np.random.default_rng(0).normal(size=(48, 33))
    rows = graph.input(4, 48, symbolic="n")
    graph.output(graph.op("Relu", graph.op("MatMul", rows, graph.constant(weights))))
    left, right = graph.input(2, 6, 48, symbolic="bt"), graph.input(2, 48, 6, symbolic="b?t")
    graph.output(graph.op("MatMul", left, right))
    sizes = [
        {"n": n, "b": b, "t": t} for n, b, t in ((1, 1, 1), (129, 2, 17), (63, 3, 8), (0, 0, 5))
    ]
    assert check(graph, sizes, {"n": 2048, "b": 8, "t": 128}) == ["dense", "dense"]


def test_elements(small_gpu: None) -> None:
    graph = Graph()
    image, other = image_of(graph, 5), image_of(graph, 5)
    graph.output(graph.op("Tanh", graph.op("Add", image, other)))
    scale = graph.constant(np.random.default_rng(0).normal(size=(5, 1, 1)))
    graph.output(graph.op("Mul", image, scale))
    graph.output(graph.op("Transpose", image, perm=[0, 2, 3, 1]))
    graph.output(graph.op("Concat", image, other, axis=3))
    sizes = [*IMAGES, {"n": 2, "h": 1, "w": 129}]
    assert sorted(check(graph, sizes)) == ["elementwise"] * 3 + ["flat"]


@pytest.mark.parametrize("typical", [1, 4096], ids=["group-per-result", "item-per-result"])
def test_reductions(typical: int, small_gpu: None) -> None:
    """Along lengths that are known and along open ones; a work-group or a work-item each."""
    graph = Graph()
    rows = graph.input(4, 70, symbolic="n")
    graph.output(graph.op("Softmax", rows, axis=1))
    graph.output(graph.op("Softmax", graph.input(4, 9, symbolic="nk"), axis=1))
    image = image_of(graph, 5)
    graph.output(graph.op("Tanh", graph.op("GlobalAveragePool", image)))
    graph.output(graph.op("ReduceMax", image, axes=[1]))
    graph.output(graph.op("Tanh", graph.op("ReduceMean", image_of(graph, 70), axes=[1])))
    columns = graph.input(70, 4, symbolic="?w")
    graph.output(graph.op("Tanh", graph.op("ReduceMean", columns, axes=[0])))
    sizes = [
        {"n": n, "k": k, "h": h, "w": w}
        for n, k, h, w in ((1, 1, 1, 1), (3, 129, 13, 17), (17, 64, 9, 7), (0, 5, 3, 3))
    ]
    found = check(graph, sizes, {"n": typical, "k": 100, "h": 16, "w": 16})
    assert found.count("reduce") == 7 and set(found) <= {"reduce", "elementwise", "flat"}


def test_resizes(small_gpu: None) -> None:
    graph = Graph()
    scales = graph.constant(np.array([1, 1, 2, 2], "float32"))
    for mode in ("nearest", "linear"):
        graph.output(graph.op("Resize", image_of(graph, 3), "", scales, mode=mode))
    assert "fallback" not in check(graph, IMAGES)


# --------------------------------------------------------------------------------- without a device


def kernels(graph: Graph) -> list[tirx.PrimFunc]:
    functions = (f for _, f in gpu_functions(graph.model()).functions_items())
    return [func for func in functions if isinstance(func, tirx.PrimFunc)]


@pytest.mark.parametrize("target", ["jetson-orin-nano", "mali-t860"])
def test_code_of_devices_that_are_not_here(target: str) -> None:
    """Lengths and divisions have 32 bits, and divide as the device does."""
    plan = lowered(convolutions().model(), target, "none", host="llvm")
    found: list[str] = []

    def collect(module: tvm.runtime.Module) -> None:
        if module.kind in ("opencl", "cuda"):
            found.append(module.inspect_source())
        for imported in module.imports:
            collect(imported)

    collect(build(plan.module, plan.resolved)._executable.mod)
    kernels = re.split(r"__global__|__kernel", "\n".join(found))[1:]
    assert kernels
    for kernel in kernels:
        assert not re.search(r"\blong\b|int64_t|rmod|rdiv", kernel)


def test_known_shapes_are_not_narrowed_by_lengths() -> None:
    graph = Graph()
    graph.output(conv(graph, graph.input(1, 8, 9, 9), (8, 8), 3))
    for func in kernels(graph):
        assert not has_open_lengths(func)
        made = schedule(func, MALI).func
        assert NARROW not in made.attrs


def test_open_shapes_have_narrow_indices() -> None:
    for spec in (MALI, ORIN):
        for func in kernels(convolutions()):
            made = schedule(func, spec)
            assert made.rule != "fallback"
            assert made.func.attrs[NARROW]


def test_more_elements_than_indices_reach_are_refused(small_gpu: None) -> None:
    graph = Graph()
    pair = graph.input(1, 1, symbolic="n"), graph.input(1, 1, symbolic="?m")
    graph.output(graph.op("Less", *pair), onnx.TensorProto.BOOL)
    compiled = tvm_edge.compile(graph.model(), "opencl", fallback="none")
    side = math.isqrt(MOST_ELEMENTS) + 1
    with pytest.raises(InputError, match=f"more than {MOST_ELEMENTS} elements"):
        compiled.run({"in0": np.zeros((side, 1), "float32"), "in1": np.zeros((1, side), "float32")})
