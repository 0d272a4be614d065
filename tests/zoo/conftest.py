"""Models of the zoo, each built once, and ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests import onnx_models
from tvm_edge import zoo

Arrays = dict[str, NDArray[Any]]


@cache
def _full(name: str) -> onnx.ModelProto:
    return zoo.build(name)


@cache
def _small(name: str) -> onnx.ModelProto:
    size = 128 if zoo.entry(name).task == "detection" else max(64, zoo.entry(name).min_image_size)
    return zoo.build(name, image_size=size, width=0.25)


@pytest.fixture
def full() -> Callable[[str], onnx.ModelProto]:
    """A network as published; a copy, free to change."""
    return lambda name: onnx.ModelProto.FromString(_full(name).SerializeToString())


@pytest.fixture
def small() -> Callable[[str], onnx.ModelProto]:
    """Return a network's topology at a size quick to run; a copy, free to change."""
    return lambda name: onnx.ModelProto.FromString(_small(name).SerializeToString())


@pytest.fixture
def session() -> Callable[..., Callable[[Mapping[str, NDArray[Any]]], Arrays]]:
    """Turn a model into a function from inputs to outputs, by ONNX Runtime.

    ``tensors`` names what to return instead of the model's outputs.
    """

    def make(
        model: onnx.ModelProto, tensors: Sequence[str] | None = None
    ) -> Callable[[Mapping[str, NDArray[Any]]], Arrays]:
        names = list(tensors or [o.name for o in model.graph.output])
        known = {o.name for o in model.graph.output}
        infos = {v.name: v for v in model.graph.value_info}
        extended = onnx.ModelProto.FromString(model.SerializeToString())
        extended.graph.output.extend(infos[n] for n in names if n not in known)
        opened = onnx_models.session(extended, threads=2)
        return lambda feeds: dict(zip(names, opened.run(names, dict(feeds)), strict=True))

    return make


@pytest.fixture
def dense_outputs() -> Callable[[onnx.ModelProto], list[str]]:
    """Names of the outputs that are smooth functions of input and weights."""
    return lambda model: [
        o.name for o in model.graph.output if o.name in ("logits", "boxes", "scores")
    ]


@pytest.fixture
def moved() -> Callable[[Arrays, Arrays], float]:
    """The largest change between two sets of outputs, relative to the largest value of each."""
    return lambda new, old: max(
        float(np.abs(new[k] - old[k]).max() / np.abs(old[k]).max()) for k in old
    )
