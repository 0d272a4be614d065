"""What was measured of kernels in one launch, in the words of tuning records.

The workload is which kernels in which order, each by the geometry of its launches: kernels of other
shapes, tiles or work-groups are others. The configuration says whether they were merged. Of the
records of a device the fastest is the verdict. Whoever measures writes both: of a merged kernel
that failed, or answered wrongly, there is a record with an error, and what the kernels take apart
is the verdict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tvm_edge.records import Found, Workload
from tvm_edge.schedules.conv_records import outdated
from tvm_edge.schedules.launch_work import Launch

__all__ = ["TEMPLATE", "group_config", "group_workload", "verdict"]

TEMPLATE = "parallel.gpu"
"""The template of records of groups; its version is with the others'."""


def group_workload(members: Sequence[Sequence[Launch]]) -> Workload:
    """Kernels in one launch as records say it.

    Parameters
    ----------
    members : sequence of sequence of Launch
        The launches of each kernel, in the order of their work-groups.
    """
    return Workload("parallel", (), "", "", {"members": [_digest(own) for own in members]})


def group_config(merged: bool) -> dict[str, str | int | float | bool]:
    """The configuration of a measurement: in one launch, or one kernel after the other."""
    return {"merged": merged}


def verdict(found: Iterator[Found]) -> bool | None:
    """Whether kernels are faster in one launch; ``None`` where nobody measured it on the device.

    Parameters
    ----------
    found : iterator of Found
        Records of the group's workload, the fastest of the device first.
    """
    for each in found:
        if each.nearness != "device":
            return None
        record = each.record
        if record.template != TEMPLATE or outdated(record):
            continue
        return record.config == group_config(True) and bool(record.latencies)
    return None


def _digest(launches: Sequence[Launch]) -> str:
    text = json.dumps([asdict(launch) for launch in launches], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
