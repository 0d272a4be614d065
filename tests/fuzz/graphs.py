"""Random ONNX models: small, of many operators, valid or nearly so.

Two sources. ONNX's own operator tests, about 1900, hold every operator in many forms; here some of
their inputs become constants, since compilers treat constants apart. And graphs of one to six
operators drawn one by one, with random shapes (ranks 0 to 5, sometimes a length of 0), types and
attributes, so that operators meet in combinations that no test has.
"""

from __future__ import annotations

import functools
import random
import warnings
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.growing_graph import FLOAT, GrowingGraph
from tests.fuzz.mutations import mutate_bytes, mutate_model
from tests.fuzz.recipes import RECIPES

__all__ = ["operator_tests", "random_file", "random_graph"]

_LARGEST_SEED = 40_000  # bytes; a finding should fit into the corpus


def random_file(seed: int, with_tests: bool = True) -> bytes:
    """A model file, a third of them undamaged.

    Collecting ONNX's operator tests takes some seconds, which `with_tests` says to spend.
    """
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = with_constants(rng) if with_tests and rng.random() < 0.5 else random_graph(rng)
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
