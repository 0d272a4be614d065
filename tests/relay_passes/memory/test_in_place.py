"""Results that are written where they belong: into concatenations, over dead operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph
from tvm_edge.compiler.prepared import prepare
from tvm_edge.relay_passes.layout import choose_blocks as layout_choice


@pytest.fixture(autouse=True)
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are used although these networks are too small to pay for them."""
    monkeypatch.setattr(layout_choice, "_gain", lambda *_: 1.0)


def compiled(graph: Graph, target: str = "llvm") -> tvm_edge.CompiledModel:
    """The model, whose outputs agree with ONNX Runtime's in three runs, fresh memory or not."""
    model = graph.model()
    # Kernels are told apart by their names.
    result = tvm_edge.compile(model, target, fallback="none", parallel_fusion=False)
    for scale in (1.0, -0.5, 2.0):
        values = {
            name: np.asarray(value * scale, value.dtype) for name, value in graph.values.items()
        }
        actual = result.run(values)
        for name, expected in reference(model, values).items():
            assert relative_error(actual[name], expected) < 1e-5, onnx.printer.to_text(model.graph)
    return result


def conv(graph: Graph, data: str, channels: int, filters: int, size: int = 3) -> str:
    weights = np.random.default_rng(filters).normal(size=(filters, channels, size, size))
    name = graph.op(
        "Conv", data, graph.constant(weights / (size * channels**0.5)), pads=[size // 2] * 4
    )
    return graph.op("Relu", name)


def names(model: tvm_edge.CompiledModel) -> list[str]:
    return [kernel.name for kernel in model.report.kernels]


def in_place(model: tvm_edge.CompiledModel) -> int:
    return sum(name.endswith("_in_place") for name in names(model))


def fire(graph: Graph) -> None:
    """SqueezeNet: two branches, concatenated, read by a convolution."""
    squeezed = conv(graph, graph.input(1, 32, 13, 11), 32, 16, 1)
    both = [conv(graph, squeezed, 16, 32, size) for size in (1, 3)]
    graph.output(conv(graph, graph.op("Concat", *both, axis=1), 64, 32))


def dense_block(graph: Graph) -> None:
    """DenseNet: each layer's features are read by all later ones."""
    features = conv(graph, graph.input(1, 16, 9, 9), 16, 32)
    for layer in range(3):
        channels = 32 + 16 * layer
        features = graph.op("Concat", features, conv(graph, features, channels, 16), axis=1)
    graph.output(conv(graph, features, 80, 16, 1))


def inception(graph: Graph) -> None:
    """A concatenation of concatenations and a pool, the inner one read elsewhere too."""
    data = conv(graph, graph.input(1, 16, 10, 10), 16, 32)
    inner = graph.op("Concat", conv(graph, data, 32, 16), conv(graph, data, 32, 32, 1), axis=1)
    pool = graph.op("MaxPool", data, kernel_shape=[3, 3], pads=[1] * 4)
    outer = graph.op("Concat", pool, inner, axis=1)
    graph.output(conv(graph, outer, 80, 16))
    graph.output(conv(graph, inner, 48, 16))


@pytest.mark.parametrize("build, copies", [(fire, 0), (dense_block, 0), (inception, 1)])
def test_branches_write_into_the_concatenation(build: Callable[[Graph], None], copies: int) -> None:
    graph = Graph()
    build(graph)
    model = compiled(graph)
    assert sum("concatenate" in name for name in names(model)) == copies
    assert in_place(model) >= 1


def test_a_profile_has_a_row_for_each_kernel_left() -> None:
    graph = Graph()
    fire(graph)
    model = compiled(graph)
    rows = model.profile(graph.values).kernels
    assert [row.name for row in rows] == names(model)
    assert all(row.operators for row in rows)


@pytest.mark.parametrize("batch", [1, 2])
def test_only_one_picture_is_concatenated_in_place(batch: int) -> None:
    """Parts of a batch do not lie one behind the other."""
    graph = Graph()
    data = conv(graph, graph.input(batch, 16, 8, 8), 16, 32)
    joined = graph.op("Concat", conv(graph, data, 32, 16), conv(graph, data, 32, 16, 1), axis=1)
    graph.output(conv(graph, joined, 32, 16))
    assert any("concatenate" in name for name in names(compiled(graph))) == (batch > 1)


def test_outputs_of_the_model_are_whole() -> None:
    """A branch that is an output as well, and a concatenation that is one."""
    graph = Graph()
    data = conv(graph, graph.input(1, 16, 8, 8), 16, 32)
    left, right = conv(graph, data, 32, 16), conv(graph, data, 32, 16, 1)
    graph.output(graph.op("Concat", left, right, axis=1))
    graph.output(left)
    compiled(graph)


def residual(graph: Graph, *, read_later: bool) -> None:
    data = conv(graph, graph.input(1, 32, 14, 14), 32, 32)
    weights = graph.constant(np.random.default_rng(1).normal(size=(32, 32, 3, 3)) / 17)
    inner = graph.op("Conv", conv(graph, data, 32, 32, 1), weights, pads=[1] * 4)
    total = graph.op("Relu", graph.op("Add", inner, data))
    graph.output(conv(graph, total, 32, 16))
    if read_later:
        graph.output(conv(graph, graph.op("Mul", total, data), 32, 16, 1))


@pytest.mark.parametrize("read_later", [False, True])
def test_a_residual_is_overwritten_when_it_is_dead(read_later: bool) -> None:
    graph = Graph()
    residual(graph, read_later=read_later)
    model = compiled(graph)
    (adding,) = (k for k in model.report.kernels if any("add" in o for o in k.operators))
    assert adding.name.endswith("_in_place") == (not read_later)


@pytest.mark.parametrize(
    "build, target",
    [
        *product((fire, dense_block), ("llvm", "opencl", "mali-g76", "jetson-orin-nano")),
        (partial(residual, read_later=False), "llvm"),
        (partial(residual, read_later=False), "opencl"),
    ],
)
def test_kernels_that_are_not_called_are_not_built(
    build: Callable[[Graph], None], target: str
) -> None:
    """Such as those that now write in place, as they were, and concatenations."""
    graph = Graph()
    build(graph)
    # Nothing is built for it: the device need not be here.
    plan = prepare(graph.model(), target, None, "none", host=None if target == "llvm" else "llvm")
    kernels = {str(gvar.name_hint) for gvar in plan.unmerged.get_global_vars()}
    assert any(name.endswith("_in_place") for name in kernels)
    assert kernels == {"main", *(kernel.name for kernel in plan.report.kernels)}


def test_inputs_are_not_overwritten() -> None:
    graph = Graph()
    data = graph.input(1, 32, 14, 14)
    weights = graph.constant(np.random.default_rng(1).normal(size=(32, 32, 3, 3)) / 17)
    inner = graph.op("Conv", data, weights, pads=[1] * 4)
    graph.output(graph.op("Add", inner, data))
    before = graph.values[data].copy()
    model = compiled(graph)
    model.run(graph.values)
    assert np.array_equal(graph.values[data], before)
