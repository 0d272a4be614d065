"""A record says the same after a way through JSON, and text that is none is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.records.made import failure, record
from tvm_edge.errors import RecordError
from tvm_edge.hardware import resolve_target
from tvm_edge.records import RecordDevice, TuningRecord


@pytest.mark.parametrize("made", [record(3, 1), failure()], ids=["measured", "failed"])
def test_json_and_back(made: TuningRecord) -> None:
    text = made.to_json()
    assert "\n" not in text
    read = TuningRecord.from_json(text)
    assert read == made and read.identity == made.identity and read.to_json() == text


def test_equal_workloads_have_one_key_whoever_wrote_them() -> None:
    made = record()
    turned = dict(reversed(json.loads(made.to_json()).items()))
    turned["workload"]["attributes"] = dict(reversed(turned["workload"]["attributes"].items()))
    read = TuningRecord.from_json(json.dumps(turned, indent=1))
    assert read.identity == made.identity
    assert read.identity != record(1).identity != record(1, 1).identity


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(record().to_json()), **fields})


def _without(name: str) -> str:
    return json.dumps({k: v for k, v in json.loads(record().to_json()).items() if k != name})


BAD = {
    "truncated": (record().to_json()[:200], "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "no object": ("[1]", "a JSON list"),
    "later schema": (_changed(schema=2), "a record of schema 2"),
    "no schema": (_without("schema"), "a record of schema None"),
    "true schema": (_changed(schema=True), "a record of schema True"),
    "no device": (_without("device"), "without 'device'"),
    "unknown field": (_changed(colour="red"), "colour"),
    "both": (_changed(error="MeasureTimeout"), "latencies or an error"),
    "neither": (_changed(latencies=[]), "latencies or an error"),
    "negative": (_changed(latencies=[-1.0]), "latencies"),
    "nan": (_changed(latencies=[float("nan")]), "latencies"),
    "text": (_changed(latencies="abc"), "latencies"),
    "time": (_changed(time="yesterday"), "yesterday"),
    "target": (_changed(target={}), "kind"),
    "nested knob": (_changed(config={"rows": [1]}), "config"),
    "escape": (
        _changed(device={"key": "../../etc/passwd", "architecture": "a"}),
        "not vendor/device",
    ),
    "hidden": (_changed(device={"key": "arm/.x", "architecture": "a"}), "not vendor/device"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_record_is_refused(case: str) -> None:
    text, said = BAD[case]
    with pytest.raises(RecordError) as caught:
        TuningRecord.from_json(text)
    assert said in str(caught.value)


def test_of_two_of_one_identity_the_later_measurement_stays() -> None:
    early, late = record(time="2026-01-01T00:00:00Z"), record(cost=2.0)
    failed = failure(time="2027-01-01T00:00:00Z")
    assert early.identity == late.identity == failed.identity
    assert late.standing > early.standing > failed.standing


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("mali-t860", "mali-t860", "device"),
        ("jetson-orin-nano", "jetson-nano", "architecture"),
        ("mali-t860", "mali-g76", "vendor"),
        ("mali-t860", "intel-hd505", None),
        ("llvm", "mali-t860", None),
    ],
)
def test_how_near_devices_are(one: str, other: str, near: str | None) -> None:
    first, second = (RecordDevice.of(resolve_target(name).spec) for name in (one, other))
    assert first.near(second) == second.near(first) == near


def test_cores_and_clock_do_not_make_another_architecture() -> None:
    spec = resolve_target("llvm").spec
    more = replace(spec, key=f"{spec.key}-other", cores=64, peak_gflops=9e9)
    assert RecordDevice.of(spec).near(RecordDevice.of(more)) == "architecture"
    wider = replace(more, simd_bytes=spec.simd_bytes * 2)
    assert RecordDevice.of(spec).near(RecordDevice.of(wider)) == "vendor"


def test_every_key_of_a_device_names_a_file() -> None:
    for key in ("x86_64/sapphirerapids", "aws/gpu/g4dn.xlarge", "cuda/sm_90"):
        RecordDevice(key, "").check()
