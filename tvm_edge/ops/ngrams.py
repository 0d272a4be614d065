"""Counts of n-grams of numbered words: ONNX ``TfIdfVectorizer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, scalar, text
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__: list[str] = []

# Columns of the result, and words between two of an n-gram: a kernel each.
_MOST_COLUMNS = 1 << 24
_MOST_SKIPS = 256


@dataclass(frozen=True)
class _Pool:
    """The n-grams of one length: words ``(count, n)``, and of each its column and its weight."""

    words: np.ndarray
    columns: np.ndarray
    weights: np.ndarray


def _pools(attrs: Attributes) -> Iterator[_Pool]:
    """Cut the pool into its lengths, those from the shortest to the longest asked for."""
    words = np.asarray(attrs["pool_int64s"], "int64")
    columns = np.asarray(attrs["ngram_indexes"], "int64")
    weights = np.asarray(attrs.get("weights") or np.ones(len(columns)), "float32")
    if len(weights) != len(columns):
        raise ValueError(f"TfIdfVectorizer of {len(columns)} n-grams with {len(weights)} weights")
    bounds = [*(int(start) for start in attrs["ngram_counts"]), len(words)]
    place = 0
    for n, (start, end) in enumerate(pairwise(bounds), 1):
        count = max(end - start, 0) // n
        if attrs["min_gram_length"] <= n <= attrs["max_gram_length"] and count:
            grams = words[start : start + count * n].reshape(count, n)
            own = slice(place, place + count)
            yield _Pool(grams, columns[own], weights[own])
        place += count


def _convert(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    x, shape = inputs[0], static_shape(inputs[0].ty)
    if not attrs.get("pool_int64s"):
        raise NotImplementedError("TfIdfVectorizer of strings")
    if shape is None or not 1 <= len(shape) <= 2:
        raise NotImplementedError("TfIdfVectorizer of a length known only at run time")
    rows, length = (1, *shape)[-2:]
    if str(x.ty.dtype) != "int64":
        x = bb.emit(relax.op.astype(x, "int64"))
    x = bb.emit(relax.op.reshape(x, (rows, length)))
    width = int(max(attrs["ngram_indexes"])) + 1
    if min(attrs["ngram_indexes"]) < 0 or width > _MOST_COLUMNS:
        raise NotImplementedError(f"TfIdfVectorizer of {width} columns")
    if attrs["max_skip_count"] > _MOST_SKIPS:
        raise NotImplementedError(f"TfIdfVectorizer that skips {attrs['max_skip_count']} words")
    total: relax.Expr = relax.const(np.zeros((rows, width), "float32"), "float32")
    for pool in _pools(attrs):
        counted = _occurrences(bb, x, length, pool.words, int(attrs["max_skip_count"]))
        if counted is not None:
            weighted = _weighted(bb, counted, pool.weights, text(attrs, "mode", "TF"))
            for placed in _placed(bb, weighted, pool.columns, width):
                total = bb.emit(relax.op.add(total, placed))
    return bb.normalize(relax.op.reshape(total, (width,) if len(shape) == 1 else (rows, width)))


def _occurrences(
    bb: relax.BlockBuilder, x: relax.Expr, length: int, words: np.ndarray, skips: int
) -> relax.Expr | None:
    """Count each n-gram in each row, its words side by side or up to `skips` words apart.

    Single words are counted once. ``None`` where not even one fits into a row.
    """
    n = words.shape[1]
    counted: relax.Expr | None = None
    for step in range(1, 2 if n == 1 else skips + 2):
        places = length - step * (n - 1)
        if places < 1:
            break
        found: relax.Expr | None = None
        for k in range(n):
            part = relax.op.strided_slice(x, [1], [k * step], [k * step + places])
            same = relax.op.equal(
                bb.emit(relax.op.expand_dims(part, 2)), relax.const(words[:, k], "int64")
            )
            found = bb.emit(same if found is None else relax.op.logical_and(found, same))
        hits = bb.emit(relax.op.sum(relax.op.astype(found, "float32"), [1]))
        counted = hits if counted is None else bb.emit(relax.op.add(counted, hits))
    return counted


def _placed(
    bb: relax.BlockBuilder, counted: relax.Expr, columns: np.ndarray, width: int
) -> Iterator[relax.Expr]:
    """Move counts to their columns; what shares a column with another is moved after it."""
    none = bb.emit(relax.op.zeros((counted.ty.shape[0], 1), "float32"))
    padded = bb.emit(relax.op.concat([counted, none], 1))
    left = np.arange(len(columns))
    while left.size:
        _, first = np.unique(columns[left], return_index=True)
        source = np.full(width, len(columns), "int64")
        source[columns[left[first]]] = left[first]
        yield bb.emit(relax.op.take(padded, relax.const(source, "int64"), 1, mode="clip"))
        left = np.delete(left, first)


def _weighted(
    bb: relax.BlockBuilder, counts: relax.Expr, weights: np.ndarray, mode: str
) -> relax.Expr:
    """Return counts (TF), the weights of what is there (IDF), or their products (TFIDF)."""
    if mode == "TF":
        return counts
    held = relax.const(weights, "float32")
    if mode == "IDF":
        there = relax.op.greater(counts, scalar(0, counts))
        return bb.emit(relax.op.where(there, held, scalar(0, counts)))
    return bb.emit(relax.op.multiply(counts, held))


register("TfIdfVectorizer", convert=_convert)
