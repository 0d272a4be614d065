"""``parallel_fusion="auto"`` takes what was measured of a group, before what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.compiler.steps import lowered as lowered_model
from tests.relay_passes.concatenations import conv
from tests.relay_passes.fusion_groups import two_networks
from tests.schedules.harness import Graph
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.records import RecordDevice, TuningRecord, add_records
from tvm_edge.schedules.launch_work import Launch
from tvm_edge.schedules.parallel_records import TEMPLATE, group_config, group_workload

TARGET = "jetson-orin-nano"
DEVICE = RecordDevice.of(PRESETS[TARGET].spec)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    graph = Graph()
    two_networks(graph)
    return graph.model()


@pytest.fixture
def considered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Launch, ...], ...]]:
    """The launches of the kernels of each group that records are asked for."""
    found: list[tuple[tuple[Launch, ...], ...]] = []

    def remembered(members: Sequence[Sequence[Launch]]) -> object:
        found.append(tuple(map(tuple, members)))
        return group_workload(members)

    monkeypatch.setattr("tvm_edge.compiler.parallel_fusion.group_workload", remembered)
    return found


def record(
    members: Sequence[Sequence[Launch]],
    merged: bool,
    seconds: float,
    device: RecordDevice = DEVICE,
) -> TuningRecord:
    return TuningRecord(
        device,
        {"kind": "cuda"},
        group_workload(members),
        TEMPLATE,
        1,
        group_config(merged),
        (seconds,) if seconds else (),
        "0.27.0",
        "2026-11-23T05:00:00Z",
        error="" if seconds else "WrongResult",
    )


def groups(model: onnx.ModelProto, logs: Path) -> list[dict[str, object]]:
    plan = lowered_model(model, TARGET, "none", tuning_logs=logs, parallel_fusion="auto")
    report = plan.report
    return [dict(group) for group in report.fusion_groups]


def taken(found: list[dict[str, object]]) -> set[str]:
    return {str(group["kernels"]) for group in found if group["taken"]}


def test_verdicts(
    model: onnx.ModelProto,
    considered: list[tuple[tuple[Launch, ...], ...]],
    tmp_path: Path,
) -> None:
    other = replace(DEVICE, key="nvidia/another")
    add_records(tmp_path, [record([[Launch(1, 1, 1.0)]], True, 1e-6)])
    before = groups(model, tmp_path)
    assert any(group["taken"] for group in before)
    assert all("measured" not in str(group["reason"]) for group in before)
    asked = list(dict.fromkeys(considered))
    assert asked

    # Of another device, which says nothing; slower in one launch; wrong.
    add_records(tmp_path, [record(members, True, 1e-9, other) for members in asked])
    assert groups(model, tmp_path) == before
    slower = [
        record(members, merged, 3e-6 if merged else 2e-6)
        for members in asked
        for merged in (False, True)
    ]
    add_records(tmp_path, slower)
    # Others are predicted to gain, now that these are not taken.
    assert not taken(groups(model, tmp_path)) & taken(before)

    failed = tmp_path / "failed"
    add_records(failed, [record(members, True, 0.0) for members in asked])
    add_records(failed, [record(members, False, 2e-6) for members in asked])
    assert not taken(groups(model, failed)) & taken(before)

    faster = tmp_path / "faster"
    add_records(faster, [record(members, True, 1e-6) for members in asked])
    add_records(faster, [record(members, False, 2e-6) for members in asked])
    assert "measured to gain" in {group["reason"] for group in groups(model, faster)}


def test_the_faster_order_is_taken(
    considered: list[tuple[tuple[Launch, ...], ...]],
    tmp_path: Path,
) -> None:
    """Either of two kernels may come first in the launch."""
    graph = Graph()
    for filters in (16, 24):
        graph.output(conv(graph, graph.input(1, 8, 9, 7), 8, filters))
    model = graph.model()
    add_records(tmp_path, [record([[Launch(1, 1, 1.0)]], True, 1e-6)])
    groups(model, tmp_path)
    found = []
    for ascending in (True, False):
        logs = tmp_path / str(ascending)
        records = []
        for members in dict.fromkeys(considered):
            fast = (list(members) == sorted(members)) is ascending
            records.append(record(members, True, 1e-6 if fast else 1.5e-6))
            records.append(record(members, False, 2e-6))
        add_records(logs, records)
        pairs = [group for group in groups(model, logs) if group["taken"]]
        found.append([list(group["kernels"]) for group in pairs])  # type: ignore[call-overload]
    ((first,), (second,)) = found
    assert first == second[::-1] and first != second
