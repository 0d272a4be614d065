"""What a run resumes from: all that was whole on the disk, and nothing else."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tvm_edge.errors import RecordError
from tvm_edge.tuning.run_log import LoggedTrial, RunLog

HEADER: dict[str, Any] = {"tasks": "abc", "seed": 0}
KNOWN = [[3], []]
SIZES = [5, 7]
TRIALS = [
    LoggedTrial(0, 3, (1e-3, 2e-3)),
    LoggedTrial(1, 0, (), "WrongResult"),
    LoggedTrial(1, 6, (5e-4,)),
    LoggedTrial(0, 1, (7e-4,)),
    LoggedTrial(0, 2, (8e-4,)),
]


def opened(path: Path, *, resume: bool = True, **header: Any) -> RunLog:
    return RunLog(path, {**HEADER, **header}, KNOWN, 4, SIZES, resume)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of two whole rounds and one begun."""
    path = tmp_path / "runs" / "a.run"
    log = opened(path, resume=False)
    assert (log.rounds, log.begun) == ([], [])
    for number, round_ in enumerate((TRIALS[:2], TRIALS[2:3])):
        for trial in round_:
            log.add(trial)
        log.end_round(number)
    for trial in TRIALS[3:]:
        log.add(trial)
    log.close()
    return path


def test_rounds_and_begun_trials_come_back(path: Path) -> None:
    for _ in range(2):  # reading changes nothing
        log = opened(path)
        log.close()
        assert log.rounds == [TRIALS[:2], TRIALS[2:3]]
        assert log.begun == TRIALS[3:]


def test_a_resumed_run_goes_on_in_the_file(path: Path) -> None:
    log = opened(path)
    log.end_round(2)
    log.close()
    again = opened(path)
    again.close()
    assert again.rounds == [TRIALS[:2], TRIALS[2:3], TRIALS[3:]] and not again.begun


def test_what_the_run_began_with_stays(path: Path) -> None:
    """What is known later are its own records, and the cores may be others."""
    log = RunLog(path, HEADER, [[0, 1], [2]], 64, SIZES, True)
    log.close()
    assert (log.known, log.slots) == (KNOWN, 4)
    anew = RunLog(path, HEADER, [[0, 1], [2]], 64, SIZES, False)
    anew.close()
    assert (anew.known, anew.slots) == ([[0, 1], [2]], 64)


def test_a_last_line_that_is_cut_off_costs_itself(path: Path) -> None:
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        log = opened(path)
        log.add(TRIALS[4])
        log.close()
        assert log.rounds == [TRIALS[:2], TRIALS[2:3]] and log.begun == TRIALS[3:4]
        assert path.read_bytes() == whole, "what is added stands in a line of its own"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"end": 0}',
        b'{"end": 2}',
        b'{"task": 0, "place": 1}',
        b'{"task": 0, "place": 1, "latencies": 3, "error": ""}',
        b'{"task": 0, "place": 1, "latencies": ["x"], "error": ""}',
        b'{"task": 0, "place": 1, "latencies": [NaN], "error": ""}',
        b'{"task": 0, "place": 1, "latencies": [-1.0], "error": ""}',
        b'{"task": 0, "place": 1, "latencies": [], "error": ""}',
        b'{"task": 0, "place": 5, "latencies": [1.0], "error": ""}',
        b'{"task": 0, "place": -1, "latencies": [1.0], "error": ""}',
        b'{"task": 2, "place": 0, "latencies": [1.0], "error": ""}',
        b'{"task": 0, "place": 1, "latencies": [1.0], "error": "", "more": 1}',
    ],
    ids=lambda garbage: garbage[:48].decode("latin-1"),
)
def test_garbage_costs_only_what_follows(path: Path, garbage: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], garbage + b"\n", *lines[4:]]))
    log = opened(path)
    log.close()
    assert (log.rounds, log.begun) == ([TRIALS[:2]], [])
    assert path.read_bytes() == b"".join(lines[:4])


@pytest.mark.parametrize(
    "first",
    [
        b"garbage",
        b'{"run": 0}',
        b'{"run": 1, "tasks": "abc", "seed": 0, "known": [[9], []], "slots": 4}',
        b'{"run": 1, "tasks": "abc", "seed": 0, "known": [[1]], "slots": 4}',
        b'{"run": 1, "tasks": "abc", "seed": 0, "known": [[1], []], "slots": 0}',
    ],
)
def test_without_a_header_of_its_own_it_begins_anew(path: Path, first: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first + b"\n", *lines[1:]]))
    log = opened(path)
    log.close()
    assert (log.rounds, log.begun, log.known) == ([], [], KNOWN)
    assert path.read_bytes() == lines[0]


def test_another_run_begins_anew(path: Path) -> None:
    log = opened(path, seed=1)
    log.close()
    assert (log.rounds, log.begun) == ([], [])
    assert len(path.read_bytes().splitlines()) == 1


def test_without_resume_it_is_written_over(path: Path) -> None:
    log = opened(path, resume=False)
    log.add(TRIALS[0])
    log.close()
    again = opened(path)
    again.close()
    assert again.rounds == [] and again.begun == TRIALS[:1]


def test_two_at_once_keep_out_of_each_other(path: Path) -> None:
    first, second = opened(path), opened(path)
    third = opened(path, resume=False)
    assert len({first.path, second.path, third.path}) == 3
    assert first.rounds and not second.rounds
    second.add(TRIALS[0])
    for log in (first, second, third):
        log.close()
    again = opened(path)
    again.close()
    assert again.path == path and again.rounds == first.rounds and again.begun == TRIALS[3:]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "runs" / "a.run"
    with pytest.raises(RecordError, match="choose another folder") as caught:
        opened(path)
    assert str(path) in str(caught.value)


@contextmanager
def longest_file(nbytes: int) -> Iterator[None]:
    """Files can grow no further, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_what_stood_there_stands(path: Path) -> None:
    log = opened(path)
    log.add(TRIALS[0])
    with (
        longest_file(path.stat().st_size + 10),
        pytest.raises(RecordError, match="make room there") as caught,
    ):
        log.end_round(2)
    assert str(path) in str(caught.value)
    with longest_file(path.stat().st_size), pytest.raises(RecordError, match="make room"):
        log.close()
    again = opened(path)
    again.close()
    assert again.rounds == [TRIALS[:2], TRIALS[2:3]] and again.begun[:2] == TRIALS[3:]
