"""Attention as one kernel: a tile of rows goes through scores, softmax and values in the cache."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import Any

from tvm import te, tirx

from tvm_edge.schedules.analysis import divisors
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.float16 import KEPT
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.pairs import PAIR
from tvm_edge.schedules.panels import filled_matrix, packed_pairs

__all__ = ["ATTENTION", "attention"]

ATTENTION = "attention"
"""Name of the block that weighs the values; what is before it is named alike."""


def attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None,
    *,
    scale: float,
    rows: int,
    width: int,
    lanes: int,
    pairs: bool = False,
) -> te.Tensor:
    """``softmax(query @ key * scale + mask) @ value``.

    Parameters
    ----------
    query, key, value : te.Tensor
        ``[..., N, D]``, ``[..., D, M]`` and ``[..., M, E]``.
    mask : te.Tensor, optional
        Of as many axes, broadcast to ``[..., N, M]``; `width` then divides M.
    scale : float
    rows, width : int
        Of a tile of scores; what they do not divide is filled up.
    lanes : int
        Of a vector: they divide `width`.
    pairs : bool
        Whether to multiply pairs of bfloat16, of an even D; scores and softmax stay float32, and
        weights are rounded before they are divided by their sum.
    """
    *batch, count, _ = map(int, query.shape)
    columns, length = int(key.shape[-1]), int(value.shape[-1])
    tall = ceil(count / rows) * rows
    keys = _paired(key, width, "keys") if pairs else _panels(key, width)
    products = _products(query, keys, tall, pairs)

    def score(*index: Any) -> tirx.Expr:
        *outer, row, panel, w = index
        scaled = products(*index).astype("float32") * tirx.const(scale, "float32")
        if mask is not None:
            at = [*outer, tirx.min(row, count - 1), panel * width + w]
            own = zip(at, mask.shape, strict=True)
            scaled = scaled + mask(*(0 if int(n) == 1 else i for i, n in own))
        if columns % width == 0:
            return scaled
        nothing = tirx.const(-inf, "float32")
        return tirx.Select(panel * width + w < columns, scaled, nothing)

    scores = te.compute(products.shape, score, name="attention_scores")
    largest = _reduced(scores, te.max, "max", lanes)
    weights = te.compute(
        scores.shape,
        lambda *i: te.exp(scores(*i) - largest(*i[:-2])).astype(query.dtype),
        name="attention_weights",
        attrs={KEPT: True} if pairs else None,
    )
    total = _reduced(weights, te.sum, "sum", lanes)
    knobs = {CONFIG: f"rows={rows} width={width} lanes={lanes}"}
    if pairs:
        wide = lanes * divisors(length // lanes, width // lanes)[-1]
        value = _paired(value, wide, "values")
    weighed = _weighed(weights, value, columns, pairs)
    made = te.compute((*batch, tall, length), weighed, name=ATTENTION, attrs=knobs)
    result = te.compute(
        (*batch, tall, length),
        lambda *i: (made(*i).astype("float32") / total(*i[:-1])).astype(query.dtype),
        name="attention_mean",
    )
    if tall == count:
        return result
    return te.compute((*batch, count, length), lambda *i: result(*i), name="attention_rows")


def _products(query: te.Tensor, keys: te.Tensor, tall: int, pairs: bool) -> te.Tensor:
    """Multiply all rows with panels of keys; rows beyond the last are the last."""
    *batch, count, depth = map(int, query.shape)
    d, *one = _steps(depth, "d", pairs)

    def product(*index: Any) -> tirx.Expr:
        *outer, row, panel, w = index
        if tall > count:
            row = tirx.min(row, count - 1)
        own = query(*outer, row, d * PAIR + one[0] if one else d)
        return te.sum(own * keys(*outer, panel, d, w, *one), axis=[d, *one])

    panels, width = keys.shape[len(batch)], keys.shape[len(batch) + 2]
    return te.compute((*batch, tall, panels, width), product, name="attention_products")


def _weighed(
    weights: te.Tensor, values: te.Tensor, columns: int, pairs: bool
) -> Callable[..., tirx.Expr]:
    """Return the element of a mean, before it is divided by the sum of its weights."""
    width = int(weights.shape[-1])
    j, *one = _steps(columns, "j", pairs)

    def element(*index: Any) -> tirx.Expr:
        *outer, row, e = index
        if not pairs:
            own = weights(*outer, row, tirx.floordiv(j, width), tirx.floormod(j, width))
            return te.sum(own * values(*outer, j, e), axis=j)
        panel, step = tirx.floordiv(j, width // PAIR), tirx.floormod(j, width // PAIR)
        own = weights(*outer, row, panel, step * PAIR + one[0])
        wide = int(values.shape[-2])
        place = tirx.floordiv(e, wide), j, tirx.floormod(e, wide)
        return te.sum(own * values(*outer, *place, *one), axis=[j, *one])

    return element


def _steps(length: int, name: str, pairs: bool) -> list[tirx.IterVar]:
    """Return the axis of a reduction, or that of its pairs and that of a pair."""
    if not pairs:
        return [te.reduce_axis((0, length), name=name)]
    steps = te.reduce_axis((0, ceil(length / PAIR)), name=name)
    return [steps, te.reduce_axis((0, PAIR), name="pair")]


def _paired(matrix: te.Tensor, width: int, name: str) -> te.Tensor:
    """Return ``[..., K, N]`` as ``[..., N/w, K/2, w, 2]``, filled up with zeros."""
    depth, columns = (int(length) for length in matrix.shape[-2:])
    whole = filled(depth, PAIR), filled(columns, width)
    return packed_pairs(
        filled_matrix(matrix, *whole, f"attention_filled_{name}"), width, f"attention_{name}"
    )


def _panels(key: te.Tensor, width: int) -> te.Tensor:
    """Return ``[..., D, M]`` as ``[..., M/w, D, w]``, filled up with zeros."""
    *batch, depth, columns = map(int, key.shape)

    def packed(*index: Any) -> tirx.Expr:
        *outer, panel, d, w = index
        column = panel * width + w
        if columns % width == 0:
            return key(*outer, d, column)
        inside = column < columns
        return tirx.if_then_else(inside, key(*outer, d, column), tirx.const(0, str(key.dtype)))

    shape = (*batch, ceil(columns / width), depth, width)
    return te.compute(shape, packed, name="attention_keys")


def _reduced(tile: te.Tensor, combine: Any, name: str, lanes: int) -> te.Tensor:
    """Reduce the columns of ``[..., N, M/w, w]``: vector by vector, then its lanes."""
    *outer, panels, width = map(int, tile.shape)
    step = te.reduce_axis((0, panels * (width // lanes)), name="step")
    lane = te.reduce_axis((0, lanes), name="v")

    def vector(*index: Any) -> tirx.Expr:
        *place, v = index
        at = step * lanes
        own = tile(*place, tirx.floordiv(at, width), tirx.floormod(at, width) + v)
        return combine(own.astype("float32"), axis=step)

    parts = te.compute((*outer, lanes), vector, name=f"attention_{name}_lanes")
    return te.compute(
        outer, lambda *i: combine(parts(*i, lane), axis=lane), name=f"attention_{name}"
    )
