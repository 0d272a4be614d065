"""Recipes: functions that draw a node for a graph, and what they are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.growing_graph import GrowingGraph

__all__ = ["RECIPES", "Recipe", "ints", "maybe", "node", "recipe"]

Recipe = Callable[[GrowingGraph], onnx.NodeProto]
RECIPES: list[Recipe] = []


def recipe(function: Recipe) -> Recipe:
    RECIPES.append(function)
    return function


def node(
    g: GrowingGraph, op: str, inputs: list[str], outputs: int = 1, **attrs: Any
) -> onnx.NodeProto:
    given = {key: value for key, value in attrs.items() if value is not None}
    return helper.make_node(op, inputs, [g.name() for _ in range(outputs)], **given)


def maybe(g: GrowingGraph, value: Any, chance: float = 0.5) -> Any:
    return value if g.rng.random() < chance else None


def ints(g: GrowingGraph, value: list[int]) -> str:
    """A constant, mostly; sometimes known at run time only."""
    if g.rng.random() < 0.05:
        return g.new(TensorProto.INT64, (len(value),))
    return g.constant(np.asarray(value, "int64"))
