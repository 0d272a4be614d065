"""Worker process that measures: the parent's end of it, and the loop that serves its requests.

A kernel may hang, crash or break the device: it takes its process along and nothing else. A worker
serves one request at a time. Another process takes the place of one that is late or dies, and of
one whose kernels failed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

from tvm_edge.child import Child, ChildEnded, connection_to_parent, end_with_parent
from tvm_edge.errors import (
    DeviceLost,
    InvalidLaunch,
    MeasureTimeout,
    MissingDependencyError,
    WrongResult,
    one_line,
)

__all__ = ["Done", "Failed", "Limits", "Service", "Worker", "serve", "wait_for_answers"]

_LOG = logging.getLogger("tvm_edge.tuning")

_START_SECONDS = 120.0
_CHECK_SECONDS = 0.2


@dataclass(frozen=True)
class Done:
    """Seconds of single runs, one of each round."""

    latencies: tuple[float, ...] = ()


@dataclass(frozen=True)
class Failed:
    """Class of an error, and its message.

    Attributes
    ----------
    error, message : str
    ran : bool
        Whether its kernels had been launched: they may have written anywhere, and a CUDA context
        in which one failed serves nothing any more.
    """

    error: str
    message: str
    ran: bool = False


@dataclass(frozen=True)
class Limits:
    """Seconds that requests may take, and the timings of a kernel.

    Attributes
    ----------
    build, measure : float
        After which a candidate is given up.
    rounds : int
        Timings of a candidate.
    seconds : float
        Of one timing.
    hopeless : float
        A candidate so many times slower than the best of its task is timed once.
    """

    build: float = 60.0
    measure: float = 20.0
    rounds: int = 3
    seconds: float = 0.015
    hopeless: float = 1.5


def _nothing() -> None: ...


class Worker(Child):
    """Process that serves requests, or the one that took its place.

    Parameters
    ----------
    module : str
        Its ``main`` calls :func:`serve`.
    target, host
        As for :func:`tvm_edge.hardware.resolve_target`, in the process.
    num_threads : int
        Of a CPU's kernels.

    Attributes
    ----------
    ready : bool
        Whether the process has started, and takes requests.
    generation : int
        Counts the processes: what an earlier one held is lost.
    """

    def __init__(self, module: str, target: Any, host: Any, num_threads: int) -> None:
        self._given = (target, host, num_threads)
        self.generation = 0
        super().__init__(module)

    def start(self) -> None:
        """Start a process, which answers when it is ready."""
        super().start()
        self.ask(self._given, _START_SECONDS)
        self.ready = False
        self._paused = False
        self.generation += 1

    def call(self, request: Any, seconds: float, check: Callable[[], None] = _nothing) -> Any:
        """Send a request and wait for its answer.

        Parameters
        ----------
        request
        seconds : float
            After which it is given up.
        check : callable
            Called every fifth of a second; what it raises ends the wait.

        Raises
        ------
        DeviceLost
            The process does not start.
        MissingDependencyError
            The process misses a compiler.
        """
        self.wait_until_ready(check)
        self.ask(request, seconds)
        ((_, answer),) = wait_for_answers([self], check)
        return answer

    def wait_until_ready(self, check: Callable[[], None] = _nothing) -> None:
        """Wait until the process takes requests."""
        while not self.ready:
            wait_for_answers([self], check)

    def answer(self) -> Any:
        """Take the answer that has come; a process that died is replaced."""
        try:
            answer = self.receive()
        except ChildEnded as err:
            return self._replace(DeviceLost, str(err))
        self.ready = True
        if isinstance(answer, Failed):
            if answer.error == MissingDependencyError.__name__:
                raise MissingDependencyError(answer.message)
            if answer.ran:
                self.stop()
                self.start()
        return answer

    def give_up(self) -> Failed:
        """Replace a process that is late."""
        return self._replace(MeasureTimeout, "it ran past its time")

    def _replace(self, error: type[Exception], message: str) -> Failed:
        _LOG.info("a measuring process is replaced: %s", message)
        was_ready = self.ready
        self.stop()
        if not was_ready:
            raise DeviceLost(
                f"a process that measures on {self._given[0]} does not start: {message}; "
                "what it wrote on standard error says why"
            )
        self.start()
        return Failed(error.__name__, message)

    def pause(self, wanted: bool) -> None:
        """Stop the process, or let it go on; returns when all its threads have stopped."""
        if wanted == self._paused:
            return
        self.process.send_signal(signal.SIGSTOP if wanted else signal.SIGCONT)
        self._paused = wanted
        if wanted and self.process.returncode is None:
            pid, stopped = self.process.pid, os.WSTOPPED
            # How it ended, if it did, is left for `answer` to find out; that it stopped is not.
            os.waitid(os.P_PID, pid, stopped | os.WEXITED | os.WNOWAIT)
            os.waitid(os.P_PID, pid, stopped | os.WNOHANG)


def wait_for_answers(
    workers: Sequence[Worker], check: Callable[[], None]
) -> list[tuple[Worker, Any]]:
    """Wait for a worker to answer, to die or to run out of time; return all answers there are."""
    asked = {worker.connection: worker for worker in workers}
    while True:
        check()
        left = min(worker.deadline for worker in workers) - monotonic()
        ready = wait(list(asked), min(max(left, 0.0), _CHECK_SECONDS))
        if ready or left <= 0:
            break
    if ready:
        return [(w, w.answer()) for c, w in asked.items() if c in ready]
    late = min(workers, key=lambda worker: worker.deadline)
    return [(late, late.give_up())]


# ------------------------------------------------------------------------- in the process


class Service:
    """Requests of one kind of worker, and what their answers need.

    Attributes
    ----------
    handlers : mapping of type to callable
        By the type of a request the function that returns its answer; ``None`` is not sent.
    launched : bool
        Whether kernels have been launched for the request at hand.
    """

    handlers: Mapping[type, Callable[[Any], Any]]
    launched = False

    def answer(self, request: Any) -> Any:
        """Serve a request; whatever is raised becomes a :class:`Failed`.

        The parent alone decides what a failure costs.
        """
        self.launched = False
        try:
            return self.handlers[type(request)](request)
        except MissingDependencyError as err:
            return Failed("MissingDependencyError", str(err))
        except WrongResult as err:
            return Failed("WrongResult", str(err), ran=True)
        # Whatever a compiler or driver says of a candidate is that candidate's.
        except Exception as err:
            message = f"{type(err).__name__}: {one_line(err)}"
            return Failed(InvalidLaunch.__name__, message, ran=self.launched)


def serve(make_service: Callable[[Any, Any, int], Service]) -> None:
    """Say that this process is ready, and serve its parent until the connection is gone.

    Parameters
    ----------
    make_service : callable
        Takes target, host and number of threads.
    """
    # With the parent, however it ends: a kernel that hangs does not see the connection close.
    end_with_parent()
    with connection_to_parent() as connection:
        service = make_service(*connection.recv())
        connection.send(Done())
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            answer = service.answer(request)
            if answer is not None:
                connection.send(answer)
