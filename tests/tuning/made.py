"""Convolutions that tests of the tuner measure, a network of them, and its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tests.onnx_models import make_model, random_input
from tvm_edge.hardware import resolve_target
from tvm_edge.records import Database, TuningRecord, store_of
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.tasks import legal_configs

INPUTS = {"x": random_input((1, 16, 12, 12))}
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


def network(channels: int = 16) -> onnx.ModelProto:
    """Two 3x3 convolutions of one shape and a 1x1."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], name="second", pads=[1] * 4),
        helper.make_node("Conv", ["c", "u"], ["y"], name="third"),
    ]
    weights = {
        "w": random_input((channels, 16, 3, 3), 1),
        "v": random_input((channels, channels, 3, 3), 2),
        "u": random_input((32, channels, 1, 1), 3),
    }
    return make_model(nodes, {"x": (1, 16, 12, 12)}, ["y"], weights)


def records_of(folder: Path) -> list[TuningRecord]:
    """Records of this CPU in a folder, none of them damaged."""
    with Database(store_of(folder, resolve_target("llvm").spec.key), readonly=True) as database:
        records, damages = database.all()
        assert not damages and not database.damages()
    return records
