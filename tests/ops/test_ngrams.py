"""Counts of n-grams, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, reference

RANDOM = np.random.default_rng(3)
# Words, pairs and triples of a vocabulary of six, in columns of any order.
WORDS = [[w] for w in (0, 2, 5)]
PAIRS = [[0, 1], [1, 1], [2, 5], [5, 0], [3, 4]]
TRIPLES = [[0, 1, 2], [1, 1, 1], [4, 0, 3], [2, 2, 5]]
POOL = [word for grams in (WORDS, PAIRS, TRIPLES) for gram in grams for word in gram]
POOLS: dict[str, Any] = {
    "pool_int64s": POOL,
    "ngram_counts": [0, len(WORDS), len(WORDS) + 2 * len(PAIRS)],
    "ngram_indexes": [int(i) for i in RANDOM.permutation(12)],
}
WEIGHTS = [float(w) for w in RANDOM.random(12).astype("float32")]


def check(x: np.ndarray, target: str, **attributes: Any) -> None:
    model = make_model(
        [helper.make_node("TfIdfVectorizer", ["x"], ["y"], **attributes)],
        {"x": x.shape},
        ["y"],
        dtypes={"x": TensorProto.INT64 if x.dtype == "int64" else TensorProto.INT32},
    )
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"], rtol=1e-6)


@pytest.mark.diagonals(4)
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("weighted", [False, True])
def test_modes(mode: str, weighted: bool, target: str) -> None:
    x = RANDOM.integers(0, 6, (3, 17), "int64")
    given = {"weights": WEIGHTS} if weighted else {}
    check(
        x,
        target,
        **POOLS,
        **given,
        mode=mode,
        min_gram_length=1,
        max_gram_length=3,
        max_skip_count=2,
    )


@pytest.mark.diagonals(5)
@pytest.mark.parametrize("shape", [(11,), (2, 11), (2, 2), (1,)])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (2, 3), (1, 3)])
@pytest.mark.parametrize("skips", [0, 4])
def test_lengths_and_skips(shape: tuple[int, ...], lengths: tuple[int, int], skips: int) -> None:
    """Rows that are shorter than an n-gram have none."""
    x = RANDOM.integers(0, 6, shape, "int32")
    shortest, longest = lengths
    check(
        x,
        "llvm",
        **POOLS,
        mode="TF",
        min_gram_length=shortest,
        max_gram_length=longest,
        max_skip_count=skips,
    )


def test_columns_that_are_shared_and_that_nothing_counts() -> None:
    check(
        RANDOM.integers(0, 6, (4, 13), "int64"),
        "llvm",
        **{**POOLS, "ngram_indexes": [4, 4, 9, 0, 9, 2, 4, 0, 1, 6, 6, 3]},
        mode="TF",
        min_gram_length=1,
        max_gram_length=3,
        max_skip_count=1,
    )
