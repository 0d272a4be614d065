"""Children that take turns, and children that are ended after a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.processes import Job, run_child_within
from benchmarks.common.turns import TurnProcess, answer_turns, error_line


def _load(how: str) -> dict[str, Any]:
    if how == "refuses":
        raise ValueError("no such model\nsecond line")
    return {"how": how}


def _turn(word: str) -> dict[str, Any]:
    if word == "raise":
        raise ValueError("odd width\nsecond line")
    if word == "print":
        print("a library's words")
    if word == "die":
        print("first\nlast words", file=sys.stderr, flush=True)
        os._exit(3)
    if word == "sleep":
        time.sleep(60)
    return {"word": word, "pid": os.getpid()}


def _serve(how: str, _: Path) -> dict[str, Any]:
    return answer_turns(lambda: _load(how), _turn)


def _sleep(_: Path) -> dict[str, Any]:
    time.sleep(60)
    return {}


JOBS: dict[str, Job] = {"serve": _serve, "sleep": _sleep}


@pytest.fixture
def child(tmp_path: Path) -> Iterator[TurnProcess]:
    process = TurnProcess(__name__, "serve", "works", tmp_path, seconds=20)
    yield process
    process.end()


def test_a_child_loads_once_and_takes_turns(child: TurnProcess) -> None:
    assert child.loaded == {"how": "works"}
    first, second = child.ask("a"), child.ask("b")
    assert (first["word"], second["word"]) == ("a", "b") and first["pid"] == second["pid"]
    child.end()
    assert not child.is_alive


def test_what_libraries_print_is_no_answer(child: TurnProcess) -> None:
    assert child.ask("print")["word"] == "print"


def test_a_child_outlives_an_error(child: TurnProcess) -> None:
    assert child.ask("raise") == {"failed": "ValueError: odd width"}
    assert child.ask("a")["word"] == "a"


def test_a_child_that_dies_says_its_status_and_last_line(child: TurnProcess) -> None:
    assert child.ask("die") == {"failed": "exit status 3: last words"}
    assert not child.is_alive
    assert "exit status 3" in child.ask("a")["failed"]


def test_a_child_that_cannot_load_says_why(tmp_path: Path) -> None:
    process = TurnProcess(__name__, "serve", "refuses", tmp_path, seconds=20)
    process.end()
    assert process.loaded == {"failed": "ValueError: no such model"}


def test_a_turn_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    process = TurnProcess(__name__, "serve", "works", tmp_path, seconds=2)
    assert process.ask("sleep") == {"failed": "more than 2 s"}
    assert not process.is_alive
    process.end()


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    start = time.perf_counter()
    assert run_child_within(1, __name__, "sleep", tmp_path) == {"failed": "more than 1 s"}
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("first\nsecond", "first"),
        ("\n  Traceback (most recent call last):\n  File x\nCheck failed: n", "Check failed: n"),
        ("", "no message"),
    ],
)
def test_the_line_of_an_error(text: str, line: str) -> None:
    assert error_line(RuntimeError(text)) == f"RuntimeError: {line}"
