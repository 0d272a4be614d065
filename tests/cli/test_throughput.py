"""``tvm-edge bench --mode throughput``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Files, Invoke
from tvm_edge.host import allowed_cpus


@pytest.mark.parametrize("form", ["model", "artifact"])
def test_copies_run_at_once(invoke: Invoke, files: Files, form: str) -> None:
    options = ("--mode", "throughput", "--seconds", 0.2, "--streams", 1, "--json")
    outcome = invoke("bench", getattr(files, form), *options)
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.data
    assert found["streams"] == 1 and found["batch"] == 1 and found["runs"] > 1
    assert found["frames_per_second"] == found["runs_per_second"] > 0
    assert 0 < found["median_ms"] <= found["p90_ms"]


def test_several_streams_and_a_batch(invoke: Invoke, files: Files) -> None:
    if len(allowed_cpus()) < 2:
        pytest.skip("one CPU")
    options = ("--mode", "throughput", "--seconds", 0.2, "--streams", 2)
    outcome = invoke("bench", files.model, *options, "--input-shapes", "data:4,3,16,16", "--json")
    assert outcome.code == 0, outcome.err
    assert (outcome.data["streams"], outcome.data["batch"]) == (2, 4)
    rates = outcome.data["frames_per_second"], outcome.data["runs_per_second"]
    assert rates[0] == pytest.approx(4 * rates[1])
    text = invoke("bench", files.artifact, *options).out
    assert "frames a second" in text and "2 streams" in text


def test_what_does_not_go_together(invoke: Invoke, files: Files) -> None:
    assert invoke("bench", files.artifact, "--streams", 2).code == 2
    assert invoke("bench", files.artifact, "--mode", "throughput", "--load", 1).code == 2
    many = invoke("bench", files.artifact, "--mode", "throughput", "--streams", 4096)
    assert many.code == 4 and "CPUs that may be used" in many.err
