"""Records that tests make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm_edge.hardware import DeviceSpec
from tvm_edge.records import RecordDevice, TuningRecord, Workload
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import (
    TEMPLATES,
    recorded_config,
    recorded_target,
    recorded_workload,
    template_of,
)
from tvm_edge.schedules.conv_workload import ConvWorkload

DEVICE = RecordDevice("arm/mali-g52", "arm/wave8-local-global", "Arm Mali-G52 MP2", "r32p1")


def workload(number: int = 0) -> Workload:
    """A convolution; each number another one."""
    attributes = {"strides": [1, 1], "padding": [1] * 4, "dilation": [1, 1], "groups": 1}
    shapes = ((1, 8, 12, 12 + number), (16, 8, 3, 3))
    return Workload("conv2d", shapes, "float32", "NCHW", attributes)


def record(number: int = 0, knob: int = 0, cost: float = 1e-3, **fields: Any) -> TuningRecord:
    """A record of convolution `number` with one knob."""
    made = TuningRecord(
        DEVICE,
        {"kind": "opencl"},
        workload(number),
        "conv2d.gpu",
        TEMPLATES["conv2d.gpu"],
        {"algorithm": "direct", "rows": knob},
        (cost, 1.1 * cost, 0.9 * cost),
        "0.27.0.post1",
        "2026-11-22T19:39:33Z",
    )
    return replace(made, **fields)


def failure(number: int = 0, knob: int = 0, **fields: Any) -> TuningRecord:
    """Return a record of a failed measurement."""
    return record(number, knob, latencies=(), error="MeasureTimeout", **fields)


def measured(
    conv: ConvWorkload, config: ConvConfig, spec: DeviceSpec, kind: str, **fields: Any
) -> TuningRecord:
    """Return a tuner's record of a convolution on a device."""
    made = TuningRecord(
        RecordDevice.of(spec),
        recorded_target(kind, spec),
        recorded_workload(conv),
        template_of(spec, conv),
        TEMPLATES[template_of(spec, conv)],
        recorded_config(config),
        (1e-3,),
        "0.27.0.post1",
        "2026-11-22T19:39:33Z",
    )
    return replace(made, **fields)
