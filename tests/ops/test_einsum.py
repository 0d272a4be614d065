"""Einstein sums of every form that the standard has, of fixed and of open lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model

LENGTHS = {"b": 2, "c": 6, "d": 4, "h": 3, "i": 5, "j": 7, "k": 8, "w": 9, "H": 3}

PRODUCTS = [
    "b h i d, b h j d -> b h i j",
    "bihd,bjhd->bhij",  # heads beside the channels, as they come out of a projection
    "bchw,kc->bkhw",
    "bhwc,wkc->bhwk",  # a batch in the place of the rows
    "ij,jk",
    "Hi,bi",  # upper case before lower
    "...ij,...jk->...ik",
    "ijk,idb,cjb->kcd",
]
OTHERS = ["ii->i", "bii,bi->b", "i,i->", "ij,j->i", "bid,bjd->ijd", "i,j->ji", "ij->j"]


def compiled(equation: str, shapes: list[tuple[Any, ...]]) -> tvm_edge.CompiledModel:
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    model = make_model([node], dict(zip(names, shapes, strict=True)), ["y"])
    return tvm_edge.compile(model, "llvm")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("equation", [*PRODUCTS, *OTHERS])
@pytest.mark.parametrize("opened", [False, True], ids=["fixed", "open"])
def test_equals_numpy(equation: str, opened: bool) -> None:
    text = equation.replace(" ", "")
    labels = [term.replace("...", "bh") for term in text.split("->")[0].split(",")]
    shapes = [tuple(LENGTHS[c] for c in term) for term in labels]
    random = np.random.default_rng()
    feed = {f"x{i}": random.standard_normal(s).astype("float32") for i, s in enumerate(shapes)}
    model = compiled(equation, [*map(tuple, labels)] if opened else shapes)
    result = model.run(feed)["y"]
    expected = np.einsum(text, *(value.astype("float64") for value in feed.values()))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("equation", PRODUCTS)
def test_is_made_of_matrix_products(equation: str) -> None:
    terms = equation.replace(" ", "").replace("...", "bh").split("->")[0].split(",")
    model = compiled(equation, [tuple(LENGTHS[c] for c in term) for term in terms])
    products = [k.name for k in model.report.kernels if "matmul" in k.name]
    assert len(products) == len(terms) - 1
