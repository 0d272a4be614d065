"""``tvm-edge tune``: what it keeps, what it refuses, and how it ends and goes on."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.conftest import Invoke
from tests.cli.terminal import on_a_terminal
from tests.onnx_models import make_model
from tests.runtime.support import child_environment
from tvm_edge.cli.tune import tune_command
from tvm_edge.tuning import LEVELS

START_TIMEOUT_S, STOP_TIMEOUT_S = 120, 30
INTERRUPTED_S = 10  # generous: machines are busy


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's tuner, which a tuner would name on standard error."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture(scope="session")
def two_convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small convolutions that differ."""
    random = np.random.default_rng(0)
    weights = {
        name: (random.standard_normal((16, 16, 3, 3)) / 12).astype("float32")
        for name in ("first_weight", "second_weight")
    }
    model = make_model(
        [
            helper.make_node("Conv", ["data", "first_weight"], ["conv_out"], pads=[1] * 4),
            helper.make_node("Relu", ["conv_out"], ["relu_out"]),
            helper.make_node("Conv", ["relu_out", "second_weight"], ["out"]),
        ],
        {"data": (1, 16, 12, 12)},
        ["out"],
        weights,
    )
    path = tmp_path_factory.mktemp("tune") / "two.onnx"
    onnx.save(model, path)
    return path


def measured(folder: Path) -> int:
    """Trials in the file of the one run of a folder of records."""
    (log,) = (folder / "runs").glob("*.run")
    return sum("task" in json.loads(line) for line in log.read_text().splitlines()[1:])


def test_layouts_of_a_device_that_is_elsewhere_need_a_board(
    invoke: Invoke, two_convolutions: Path, tmp_path: Path
) -> None:
    options = ("--target", "mali-t860", "--graph", "--tuning-records", tmp_path / "records")
    outcome = invoke("tune", two_convolutions, *options)
    assert outcome.code == 5 and "--graph" not in outcome.err
    assert not (tmp_path / "records").exists()


@pytest.mark.full  # tests/tuning/test_tune.py does the same by Python
def test_a_compilation_takes_what_was_tuned(
    invoke: Invoke, two_convolutions: Path, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    records.mkdir()  # compile takes no folder that is not there
    options = ("--tuning-records", records, "--json")
    compiling = ("compile", two_convolutions, "-o", tmp_path / "two.tvme", *options)
    assert invoke(*compiling).data["report"]["records"]["tuned"] == 0

    tuned = invoke("tune", two_convolutions, "--trials", 6, *options)
    assert (tuned.code, tuned.err) == (0, "")
    assert (tuned.data["trials"], tuned.data["interrupted"]) == (6, False)
    assert [task["count"] for task in tuned.data["tasks"]] == [1, 1]
    assert sum(task["trials"] for task in tuned.data["tasks"]) == 6
    assert measured(records) == 6

    report = invoke(*compiling).data["report"]
    assert report["records"]["tuned"] == report["records"]["convolutions"] == 2
    assert [k["origin"] for k in report["kernels"]].count("tuned") == 2
    said = invoke("analyze", two_convolutions, "--tuning-records", records).out
    assert "2 of 2 convolutions covered: 2 tuned, 0 transferred" in said


def test_levels_are_those_of_the_library() -> None:
    (level,) = [p for p in tune_command.params if p.name == "level"]
    assert list(level.type.choices) == list(LEVELS)


@pytest.mark.parametrize(
    ("options", "code", "fragment"),
    [
        (("--trials", "0"), 2, "--trials"),
        (("--time-budget", "0"), 2, "--time-budget"),
        (("--time-budget", "nan"), 4, "time_budget"),
        (("--level", "hard"), 2, "--level"),
        (("--seed", "-1"), 2, "--seed"),
        (("--rpc-tracker", "board"), 4, "HOST:PORT"),
        (("--rpc-key", "mali"), 4, "--rpc-key"),
        (("--tuning-records", "none"), 4, "--tuning-records none"),
        (("--tuning-records", "{model}"), 4, "{model}"),
        (("--target", "lvm"), 4, "llvm"),
        # A device is not there, whatever other one of its kind is.
        (("--target", "mali-t860"), 5, "Mali-T860"),
    ],
)
def test_wrong_options(
    invoke: Invoke,
    two_convolutions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    code: int,
    fragment: str,
) -> None:
    """Nothing is measured, and the message names what is wrong."""
    monkeypatch.setenv("TVM_EDGE_TUNING_LOGS", str(tmp_path / "records"))
    given = [option.format(model=two_convolutions) for option in options]
    outcome = invoke("tune", two_convolutions, *given, "--json")
    assert (outcome.code, outcome.out) == (code, "")
    assert fragment.format(model=two_convolutions) in outcome.err.splitlines()[-1]
    assert not (tmp_path / "records").exists()


def descendants(leader: int) -> set[int]:
    """Processes that descend from one, in whatever session they are."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = status.read_text().rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
    found, before = {leader}, set[int]()
    while found != before:
        before = found
        found = found | {child for child, parent in parents.items() if parent in found}
    return found - {leader}


@contextmanager
def exhaustive_run(model: Path, records: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run that takes minutes, as a process."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tvm_edge", "tune", str(model), "--level", "exhaustive"),
            *("--tuning-records", str(records), *options),
        ],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_a_round(process: subprocess.Popen[str], records: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not any('"end"' in log.read_text() for log in (records / "runs").glob("*.run")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # trials of the next, which are on the disk when the run has ended


def test_control_c_keeps_what_was_measured(
    invoke: Invoke, two_convolutions: Path, tmp_path: Path
) -> None:
    """Exit status 130 with the summary, no process left behind; and the run goes on from there."""
    with exhaustive_run(two_convolutions, tmp_path) as process:
        wait_for_a_round(process, tmp_path)
        workers = descendants(process.pid)
        assert workers
        signalled = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=STOP_TIMEOUT_S)
        took = time.monotonic() - signalled
    assert process.returncode == 130, err
    assert took < INTERRUPTED_S
    assert "tvm-edge tune --resume" in out and f"records: {tmp_path}" in out
    assert err == "interrupted\n"
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []

    before = measured(tmp_path)
    counted = re.search(r": (\d+) trials of 2 convolutions", out)
    # One may have been written down and not counted when the signal came.
    assert counted is not None and 0 < before - 1 <= int(counted[1]) <= before
    options = ("--trials", before + 2, "--resume", "--tuning-records", tmp_path, "--json")
    resumed = invoke("tune", two_convolutions, *options)
    assert resumed.code == 0, resumed.err
    assert measured(tmp_path) == before + 2
    assert sum(task["trials"] for task in resumed.data["tasks"]) == before + 2
    # Only those of the last whole round stand for the run before.
    assert 2 <= resumed.data["trials"] < before + 2


def test_a_terminal_shows_how_far_it_is_and_what_was_found(
    two_convolutions: Path, tmp_path: Path
) -> None:
    """Progress goes to standard error; the table and the summary to standard output."""
    records = tmp_path / "records"
    text, printed = on_a_terminal(
        ["tune", str(two_convolutions), "--trials=6", "--tuning-records", str(records)], tmp_path
    )
    assert "tuning two.onnx" in text and "6/6 trials" in text and "/2 tasks faster" in text
    assert "GFLOP/s" in text and "trials/s" in text and "0:00:00 left" in text

    head, *rows = printed.splitlines()
    assert head.split("  ")[0] == "convolution" and head.endswith("speed-up")
    shares = [float(row.split()[-5].rstrip("%")) for row in rows[:2]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=0.2)
    assert all(row.startswith("16×12×12 to 16, 3×3/1") for row in rows[:2])
    assert rows[2].startswith(f"{two_convolutions} on ") and "6 trials of 2 conv" in rows[2]
    assert rows[-2].startswith("its convolutions take ") and rows[-2].endswith(" ms before")
    assert rows[-1] == f"records: {records}"
