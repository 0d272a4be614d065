"""Features of configurations for the cost model."""

from __future__ import annotations

from collections import Counter
from math import log2

import numpy as np

from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.knobs import knobs_as_dict
from tvm_edge.tuning.tasks import Task

__all__ = ["features"]

_ALGORITHMS = ("direct", "winograd", "subgroup", "items", "tensor", "plain")
_WORDS = {"lines": 0, "blocks": 1, "fused": 2, "whole": 0, "task": 1}
# Of the knobs of every template; 0 where a configuration has no such knob.
_KNOBS = (
    *("lines", "columns", "blocks", "order", "padding", "flat"),
    *("rows", "item_rows", "item_columns", "depth", "parts", "wave"),
    *("channels", "x", "y", "z"),
    *("down", "beside", "warps", "stages", "cached"),
)


def features(task: Task) -> np.ndarray:
    """Return one row for each configuration of a task.

    The convolution's sizes; knobs, in logarithms and as they are; the share of work in excess
    where a tile does not divide the image; the rank by the schedule's own cost model, among
    configurations of its algorithm and among all; whether it is int8.

    Returns
    -------
    np.ndarray
        ``[configurations, features]``, float32.
    """
    workload = task.workload
    lines, columns = workload.output
    shape = [
        log2(1 + size)
        for size in (
            workload.batch,
            workload.channels,
            workload.filters,
            lines,
            columns,
            workload.kernel[0] * workload.kernel[1],
            workload.strides[0],
            workload.groups,
            task.flops,
        )
    ]
    kinds = Counter(_kind(config) for config in task.configs)
    seen: Counter[tuple[str, int]] = Counter()
    rows = []
    for place, config in enumerate(task.configs):
        kind = _kind(config)
        rank, seen[kind] = seen[kind], seen[kind] + 1
        ranks = [rank / kinds[kind], log2(1 + rank), log2(1 + place)]
        own = _of_config(config, lines, columns, workload.filters)
        rows.append([*shape, *ranks, *own, float(workload.is_bytes)])
    return np.array(rows, "float32")


def _kind(config: ConvConfig) -> tuple[str, int]:
    return config.algorithm, config.m


def _of_config(config: ConvConfig, lines: int, columns: int, filters: int) -> list[float]:
    knobs = knobs_as_dict(config.knobs)
    values = [_number(knobs.get(name, 0)) for name in _KNOBS]
    known = dict(zip(_KNOBS, values, strict=True))
    m = config.m or 1
    height, width = -(-lines // m), -(-columns // m)
    # Tiles of CPUs are rows and columns of pixels, tiles of GPUs filters and pixels.
    across = height * width if known["rows"] or known["flat"] or config.m else width
    # Tiles of a work-group's items lie side by side.
    leftover = [
        _left_over(across, known["columns"] * max(known["x"], 1)),
        _left_over(filters, known["rows"] or known["channels"]),
        _left_over(height, known["lines"] * max(known["y"], 1)),
    ]
    product = [
        known["columns"] * max(known["lines"], 1) * max(known["blocks"], known["channels"], 1),
        known["rows"] * known["columns"],
        known["item_rows"] * known["item_columns"],
        known["x"] * known["y"] * known["z"],
    ]
    algorithm = [float(config.algorithm == name) for name in _ALGORITHMS]
    return [*algorithm, config.m, *values, *leftover, *(log2(1 + value) for value in product)]


def _number(value: int | bool | str) -> float:
    return float(_WORDS[value] if isinstance(value, str) else value)


def _left_over(extent: int, tile: float) -> float:
    """Return the share of the work that tiles do beyond an extent."""
    if tile < 1:
        return 0.0
    tiles = -(-extent // int(tile))
    return tiles * tile / extent - 1
