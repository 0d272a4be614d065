"""Results that are written where they belong: into concatenations, over dead operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest

from tests.compiler.steps import lowered as lowered_model
from tests.relay_passes.concatenations import (
    compiled,
    conv,
    dense_block,
    fire,
    in_place,
    inception,
    names,
)
from tests.schedules.harness import Graph
from tvm_edge.relay_passes.layout import choose_blocks as layout_choice


@pytest.fixture(autouse=True)
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are used although these networks are too small to pay for them."""
    monkeypatch.setattr(layout_choice, "_gain", lambda *_: 1.0)


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


@pytest.mark.diagonals(3)
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
    plan = lowered_model(graph.model(), target, "none", host=None if target == "llvm" else "llvm")
    kernels = {str(gvar.name_hint) for gvar in plan.lifted.get_global_vars()}
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
