"""Child processes that load once and measure when it is their turn.

The parent writes a word a line to a child's standard input and gets a JSON object a line back. So
several runtimes, each in a process of its own, are measured within a moment of each other, and none
is loaded anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, TextIO

from benchmarks.common.paths import ROOT
from benchmarks.common.processes import child_command

__all__ = ["TurnProcess", "answer_turns", "error_line"]


class TurnProcess:
    """A child that runs a job of :func:`answer_turns`.

    Parameters
    ----------
    module, *arguments
        As of :func:`~benchmarks.common.processes.run_child`.
    seconds : float
        Of a turn; a child that takes longer is ended.
    **environment : str

    Attributes
    ----------
    loaded : dict
        The first answer; ``failed`` where the child could not load.
    """

    def __init__(self, module: str, *arguments: object, seconds: float, **environment: str) -> None:
        self._seconds = seconds
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # no pipe, which fills up
        self._process = subprocess.Popen(
            child_command(module, *arguments),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self.loaded = self._read()

    @property
    def is_alive(self) -> bool:
        """Return true if it can take another turn."""
        return self._process.poll() is None

    def ask(self, word: object) -> dict[str, Any]:
        """Let it take a turn; ``failed`` says why nothing was measured."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        return self._read()

    def end(self) -> None:
        """Let it go."""
        if self._process.stdin is not None and self.is_alive:
            self._process.stdin.close()
        try:
            self._process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = Timer(self._seconds, self._kill)
        late.start()
        line = self._process.stdout.readline()
        if late.finished.is_set() and not line:
            self._process.wait()
            return {"failed": f"more than {self._seconds:.0f} s"}
        late.cancel()
        if not line:
            return self._ended()
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self) -> dict[str, Any]:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["no message"]
        return {"failed": f"exit status {status}: {said[-1][:200]}"}

    def _kill(self) -> None:
        if self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)


def answer_turns(
    load: Callable[[], dict[str, Any]], measure: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Answer a :class:`TurnProcess`: a job of a child calls this.

    Parameters
    ----------
    load : callable
        Gets everything ready and returns what there is to say of it. Where it fails the child ends.
    measure : callable
        Takes a turn. Where it fails the error's first line is the answer, and the child goes on.
    """
    with _answers() as answers:
        try:
            loaded = load()
        except Exception as error:
            _say(answers, {"failed": error_line(error)})
            return {}
        _say(answers, loaded)
        for line in sys.stdin:
            try:
                found = measure(line.strip())
            except Exception as error:
                found = {"failed": error_line(error)}
            _say(answers, found)
    return {}


def error_line(error: Exception) -> str:
    """Return an error's type and first line; TVM's begins with a traceback, and ends with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f"{type(error).__name__}: {line[:200]}"


def _say(answers: TextIO, found: dict[str, Any]) -> None:
    print(json.dumps(found), file=answers, flush=True)


@contextmanager
def _answers() -> Iterator[TextIO]:
    """Give the way to the parent, and send what libraries print to standard error instead."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers
