"""Vectors of one number in OpenCL sources."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.gpu.harness import opencl_source
from tests.schedules.harness import Graph
from tvm_edge.lowering.opencl_splats import with_splats


def same(element: str, count: int, kind: str = "float") -> str:
    return f"(({kind}{count})({', '.join([element] * count)}))"


@pytest.mark.parametrize("kind", ["half", "float", "double"])
@pytest.mark.parametrize("lanes", [2, 3, 4, 8, 16])
def test_a_number_is_written_once(lanes: int, kind: str) -> None:
    element = "a[((i * 4) + f(j, 2))]"
    text = "  c = (c + ({} * b));\n"
    once = f"(({kind}{lanes})({element}))"
    assert with_splats(text.format(same(element, lanes, kind))) == text.format(once)


def test_vectors_within_a_vector() -> None:
    inner = f"dot({same('x', 4)}, y)"
    assert with_splats(same(inner, 2)) == "((float2)(dot(((float4)(x)), y)))"
    unlike = f"((float2)({same('x', 4)}.x, 1.0f))"
    assert with_splats(unlike) == "((float2)(((float4)(x)).x, 1.0f))"


@pytest.mark.parametrize(
    "text",
    [
        "((float4)(a, a, a, b))",
        "((float4)(a, a, a, a + 1))",
        "((float4)(v2, v2))",  # two elements each
        "((float4)(a))",
        "((int4)(b, b, b, b))",  # -1 of a bool
        "((float4)(a[0], a[1], a[2], a[3]))",
    ],
)
def test_others_stay(text: str) -> None:
    assert with_splats(text) == text


def test_a_convolution_has_its_inputs_once(gpu: str) -> None:
    graph = Graph()
    rng = np.random.default_rng(3)
    data = graph.input(1, 16, 9, 9)
    weights = graph.constant(rng.normal(size=(32, 16, 1, 1)) / 4)
    graph.output(graph.op("Relu", graph.op("Conv", data, weights)))
    model = graph.model()
    text = opencl_source(model, "opencl" if gpu == "opencl" else "mali-g76")
    assert with_splats(text) == text
    assert ")(" in text
    result = tvm_edge.compile(model, gpu, fallback="none").run(graph.values)
    for name, expected in reference(model, graph.values).items():
        assert relative_error(result[name], expected) < 1e-5
