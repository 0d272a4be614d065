"""Measurements of kernels in one launch, in the words of tuning records.

The workload is which kernels in which order, each by the geometry of its launches: kernels of other
shapes, tiles or work-groups are others. The configuration says whether they were merged. Of the
records of a device the fastest is the verdict. Whoever measures writes both. A merged kernel that
failed, or answered wrongly, has a record with an error. The latency of the kernels apart is then
the verdict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf, isfinite

from tvm_edge.hardware import DeviceSpec
from tvm_edge.records import Found, Workload
from tvm_edge.schedules.conv_records import outdated
from tvm_edge.schedules.launch_work import Launch

__all__ = ["OPERATOR", "TEMPLATE", "gain", "group_config", "group_template", "group_workload"]

OPERATOR = "parallel"
"""The operator of a group's workload."""

TEMPLATE = "parallel.gpu"
"""The template of records of groups on GPUs; its version is with the others'."""

_ON_CPU = "parallel.cpu"


def group_template(spec: DeviceSpec) -> str:
    """The template of a device's groups."""
    return _ON_CPU if spec.has_cpu_cores else TEMPLATE


def group_workload(members: Sequence[Sequence[Launch]]) -> Workload:
    """Kernels in one launch as records say it.

    Parameters
    ----------
    members : sequence of sequence of Launch
        The launches of each kernel, in the order of their work-groups.
    """
    return Workload(OPERATOR, (), "", "", {"members": [_digest(own) for own in members]})


def group_config(merged: bool) -> dict[str, str | int | float | bool]:
    """The configuration of a measurement: in one launch, or one kernel after the other."""
    return {"merged": merged}


def gain(found: Iterator[Found], spec: DeviceSpec) -> float | None:
    """Speedup of kernels in one launch; ``None`` where nobody measured it here.

    Parameters
    ----------
    found : iterator of Found
        Records of the group's workload, those of the device first.
    spec : DeviceSpec

    Returns
    -------
    float or None
        0 where it failed or answered wrongly.
    """
    template = group_template(spec)
    cost: dict[bool, float] = {}
    for each in found:
        if each.nearness != "device":
            break
        record = each.record
        cores = record.target.get("cores", spec.cores)
        if record.template != template or outdated(record) or cores != spec.cores:
            continue
        for merged in (False, True):
            if record.config == group_config(merged):
                cost[merged] = min(record.cost, cost.get(merged, inf))
    if not cost:
        return None
    if not isfinite(cost.get(True, inf)):
        return 0.0
    return cost.get(False, inf) / cost[True]


def _digest(launches: Sequence[Launch]) -> str:
    text = json.dumps([asdict(launch) for launch in launches], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
