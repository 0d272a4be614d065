"""Convolutions that tests of the tuner measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm_edge.hardware import resolve_target
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.tuning.tasks import legal_configs

_BASE = ConvWorkload(1, 16, 12, 12, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)


def conv(**fields: Any) -> ConvWorkload:
    """16x12x12 to 16 by 3x3, but for `fields`."""
    return replace(_BASE, **fields)


def first_config(
    workload: ConvWorkload, algorithm: str, m: int = 0, target: str = "llvm"
) -> ConvConfig:
    """The best of an algorithm on this machine, by its schedule's cost model."""
    configs = legal_configs(workload, resolve_target(target))
    return next(c for c in configs if (c.algorithm, c.m) == (algorithm, m))
