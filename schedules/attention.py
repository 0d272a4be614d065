"""Attention as one kernel: a tile of rows goes through scores, softmax and values in the cache."""

from __future__ import annotations

from math import ceil
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
    lowest = tirx.min_value(str(query.dtype))

    def packed(*index: Any) -> tirx.Expr:
        *outer, panel, d, w = index
        column = panel * width + w
        if columns % width == 0:
            return key(*outer, d, column)
        inside = column < columns
        return tirx.if_then_else(inside, key(*outer, d, column), tirx.const(0, str(key.dtype)))

    keys = te.compute((*batch, panels, depth, width), packed, name="attention_keys")
    d = te.reduce_axis((0, depth), name="d")

    def product(*index: Any) -> tirx.Expr:
        *outer, row, panel, w = index
        if tall > count:
            row = tirx.min(row, count - 1)
        return te.sum(query(*outer, row, d) * keys(*outer, panel, d, w), axis=d)

    shape = (*batch, tall, panels, width)
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
        return tirx.Select(panel * width + w < columns, scaled, lowest)

    scores = te.compute(shape, score, name="attention_scores")
    steps = panels * (width // lanes)

    def reduced(what: te.Tensor, combine: Any, name: str) -> te.Tensor:
        step, lane = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, lanes), name="v")

        def vector(*index: Any) -> tirx.Expr:
            *outer, v = index
            at = step * lanes
            own = what(*outer, tirx.floordiv(at, width), tirx.floormod(at, width) + v)
            return combine(own, axis=step)

        parts = te.compute((*batch, tall, lanes), vector, name=f"attention_{name}_lanes")
        return te.compute(
            (*batch, tall), lambda *i: combine(parts(*i, lane), axis=lane), name=f"attention_{name}"
        )

    largest = reduced(scores, te.max, "max")
    weights = te.compute(
        shape, lambda *i: te.exp(scores(*i) - largest(*i[:-2])), name="attention_weights"
    )
    total = reduced(weights, te.sum, "sum")
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
