"""Attention as one kernel: a tile of rows goes through scores, softmax and values in the cache."""

from __future__ import annotations

from math import ceil, inf
from typing import Any

from tvm import te, tirx

from tvm_edge.schedules.knobs import CONFIG

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
    """
    *batch, count, depth = map(int, query.shape)
    columns, length = int(key.shape[-1]), int(value.shape[-1])
    panels, tall = ceil(columns / width), ceil(count / rows) * rows
    shape = (*batch, tall, panels, width)
    keys = _panels(key, width)
    d = te.reduce_axis((0, depth), name="d")

    def product(*index: Any) -> tirx.Expr:
        *outer, row, panel, w = index
        if tall > count:
            row = tirx.min(row, count - 1)
        return te.sum(query(*outer, row, d) * keys(*outer, panel, d, w), axis=d)

    products = te.compute(shape, product, name="attention_products")

    def score(*index: Any) -> tirx.Expr:
        *outer, row, panel, w = index
        scaled = products(*index) * tirx.const(scale, str(query.dtype))
        if mask is not None:
            at = [*outer, tirx.min(row, count - 1), panel * width + w]
            own = zip(at, mask.shape, strict=True)
            scaled = scaled + mask(*(0 if int(n) == 1 else i for i, n in own))
        if columns % width == 0:
            return scaled
        nothing = tirx.const(-inf, str(query.dtype))
        return tirx.Select(panel * width + w < columns, scaled, nothing)

    scores = te.compute(shape, score, name="attention_scores")
    largest = _reduced(scores, te.max, "max", lanes)
    weights = te.compute(
        shape, lambda *i: te.exp(scores(*i) - largest(*i[:-2])), name="attention_weights"
    )
    total = _reduced(weights, te.sum, "sum", lanes)
    j = te.reduce_axis((0, columns), name="j")

    def weighed(*index: Any) -> tirx.Expr:
        *outer, row, e = index
        own = weights(*outer, row, tirx.floordiv(j, width), tirx.floormod(j, width))
        return te.sum(own * value(*outer, j, e), axis=j)

    knobs = {CONFIG: f"rows={rows} width={width} lanes={lanes}"}
    made = te.compute((*batch, tall, length), weighed, name=ATTENTION, attrs=knobs)
    result = te.compute(
        (*batch, tall, length), lambda *i: made(*i) / total(*i[:-1]), name="attention_mean"
    )
    if tall == count:
        return result
    return te.compute((*batch, count, length), lambda *i: result(*i), name="attention_rows")


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
        return combine(own, axis=step)

    parts = te.compute((*outer, lanes), vector, name=f"attention_{name}_lanes")
    return te.compute(
        outer, lambda *i: combine(parts(*i, lane), axis=lane), name=f"attention_{name}"
    )
