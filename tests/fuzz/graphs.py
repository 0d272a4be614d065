"""Random ONNX models: small, of many operators, valid or nearly so.

Three sources. ``tests``: ONNX's own operator tests, about 1900, hold every operator in many forms;
here some of their inputs become constants, since compilers treat constants apart. ``graphs``: one
to six operators drawn one by one, with random shapes (ranks 0 to 5, sometimes a length of 0), types
and attributes, so that operators meet in combinations that no test has. ``exported``: the networks
of :mod:`tests.models`, with the chains of nodes that exporters write.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.growing_graph import FLOAT, GrowingGraph
from tests.fuzz.mutations import mutate_bytes, mutate_model
from tests.fuzz.recipes import RECIPES
from tests.models.corpus import GENERATORS
from tests.models.registry import with_shapes

__all__ = ["SOURCES", "operator_tests", "random_file", "random_graph"]

_LARGEST_SEED = 40_000  # bytes; a finding should fit into the corpus


def random_file(seed: int, sources: Sequence[str] = ()) -> bytes:
    """A model file, a third of them undamaged.

    Parameters
    ----------
    seed : int
    sources : sequence of str, optional
        Of :data:`SOURCES`, by default all. To collect ONNX's operator tests takes some seconds.
    """
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SOURCES[rng.choice(sources or list(SOURCES))](rng)
        chance = rng.random()
        if chance < 0.35:
            return model.SerializeToString()
        content = mutate_model(model, rng.getrandbits(32))
        if chance > 0.95:
            content = mutate_bytes(content, rng.getrandbits(32))
    return content


@functools.cache
def operator_tests() -> tuple[tuple[onnx.ModelProto, tuple[Any, ...]], ...]:
    """ONNX's operator tests as models, each with its inputs."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return tuple(
        (case.model, tuple(case.data_sets[0][0]))
        for case in cases
        if case.model.ByteSize() < _LARGEST_SEED
    )


def with_constants(rng: random.Random) -> onnx.ModelProto:
    """An operator test, with some inputs made constants."""
    tested, inputs = rng.choice(operator_tests())
    model = onnx.ModelProto()
    model.CopyFrom(tested)
    chance = rng.choice((0.0, 0.3, 0.6, 1.0))
    for value, array in list(zip(model.graph.input, inputs, strict=False))[rng.random() < 0.7 :]:
        if isinstance(array, np.ndarray) and rng.random() < chance and array.size < 4000:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)
    return model


def random_graph(rng: random.Random) -> onnx.ModelProto:
    """One to six operators."""
    graph = GrowingGraph(rng)
    wanted = rng.choice((1, 1, 2, 3, 4, 6))
    for _ in range(4 * wanted):
        try:
            node = rng.choice(RECIPES)(graph)
        # Nothing fits what there is, or the operator set is older than the operator.
        except (ValueError, IndexError, ZeroDivisionError, onnx.defs.SchemaError):
            continue
        graph.add(node)
        if len(graph.nodes) >= wanted:
            break
    if not graph.nodes:
        x = graph.pick(FLOAT)
        graph.add(helper.make_node("Identity", [x], [graph.name()]))
    used = {name for node in graph.nodes for name in node.input}
    ends = [n for node in graph.nodes for n in node.output if n and n not in used]
    if rng.random() < 0.2:
        ends = [name for node in graph.nodes for name in node.output if name]
    rng.shuffle(ends)
    graph.inputs = [v for v in graph.inputs if v.name in used or rng.random() < 0.1]
    model = graph.model(ends or list(graph.nodes[-1].output))
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception:
        return model


def exported_network(rng: random.Random) -> onnx.ModelProto:
    """A network of the corpus of exported ones, with other lengths where it leaves some open."""
    model, inputs = GENERATORS[rng.choice(sorted(GENERATORS))](rng.randrange(1000))
    if rng.random() < 0.1:
        return model  # axes stay open
    lengths = {
        dim.dim_param: rng.choice((length, length, 1, 2 * length, length + 1))
        for value in model.graph.input
        for dim, length in zip(
            value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True
        )
    }
    return with_shapes((model, inputs), lengths if rng.random() < 0.5 else {})


SOURCES: dict[str, Callable[[random.Random], onnx.ModelProto]] = {
    "tests": with_constants,
    "graphs": random_graph,
    "exported": exported_network,
}
