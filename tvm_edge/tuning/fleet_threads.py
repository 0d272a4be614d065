"""Threads of a fleet: one has a process of this machine build, one has a board measure."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import isfinite
from typing import Any

from tvm_edge.errors import (
    DeviceLost,
    InvalidLaunch,
    MeasureTimeout,
    WrongResult,
    one_line,
)
from tvm_edge.rpc.agent import Agent, Call, Upload
from tvm_edge.tuning.board_sessions import BoardSessions
from tvm_edge.tuning.candidate_worker import Export, start_worker
from tvm_edge.tuning.candidates import Exported
from tvm_edge.tuning.conv_problem import tolerance_of
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.worker import Done, Failed, Limits

__all__ = ["CHECK_SECONDS", "BoardThread", "BuilderThread", "Job", "JobQueues"]

CHECK_SECONDS = 0.2
"""Seconds after which a thread looks whether the fleet ends."""

_MOST_TRIES = 2  # of a candidate that boards are lost with
_JOIN_SECONDS = 1.0
_COOL_DOWN = 0.1  # seconds between two measurements on a board
_UPLOAD_SECONDS, _BYTES_A_SECOND = 30.0, 200e3


@dataclass(eq=False)
class Job:
    """Candidates to measure on one board: one, or several in turns."""

    trials: dict[int, Trial]
    limits: Limits
    rounds: int
    seconds: float
    exported: dict[int, Exported] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)  # boards lost with each
    at: int = -1  # the one that a board works on


class JobQueues:
    """Jobs on their way from who asks for them to the threads, and results on their way back.

    Attributes
    ----------
    to_build, to_measure, found : queue.Queue
        Candidates of jobs, jobs whose candidates are all built, and results or errors that end the
        run.
    ending : threading.Event
        The threads have to end.
    building : threading.Lock
        Of the candidates of jobs, which several threads build.
    files : iterator
        Numbers of files.
    """

    def __init__(self) -> None:
        self.to_build: queue.Queue[tuple[Job, int]] = queue.Queue()
        self.to_measure: queue.Queue[Job] = queue.Queue()
        self.found: queue.Queue[tuple[Job, int, Done | Failed] | Exception] = queue.Queue()
        self.ending = threading.Event()
        self.building = threading.Lock()
        self.files = count()
        self._current: Sequence[Job] = ()

    def begin(self, jobs: Sequence[Job]) -> int:
        """Ask for jobs in place of those before; return how many results will come."""
        self._current = jobs
        for job in jobs:
            for place in job.trials:
                self.to_build.put((job, place))
        return sum(len(job.trials) for job in jobs)

    def is_current(self, job: Job) -> bool:
        """Return true if anybody still waits for a job."""
        return job in self._current and not self.ending.is_set()

    def tell(self, job: Job, place: int, answer: Done | Failed) -> None:
        """Hand over a result."""
        self.found.put((job, place, answer))


class BuilderThread(threading.Thread):
    """Thread that has one process of this machine build."""

    def __init__(self, queues: JobQueues, target: Any, host: Any, suffix: str) -> None:
        super().__init__(daemon=True, name="tvm-edge-build")
        self._queues, self._suffix = queues, suffix
        self._worker = start_worker(target, host, 1)

    def run(self) -> None:
        """Build what is asked for, until the fleet ends."""
        queues = self._queues
        while not queues.ending.is_set():
            try:
                job, place = queues.to_build.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                continue
            if not queues.is_current(job):
                continue
            try:
                answer = self._build(job, place)
            # Whatever it is, the run has to hear of it, and cannot in this thread.
            except Exception as err:
                queues.found.put(err)
                return
            with queues.building:  # others build for the same job
                if isinstance(answer, Failed):
                    queues.tell(job, place, answer)
                    del job.trials[place]
                else:
                    job.exported[place] = answer
                if job.trials and len(job.exported) == len(job.trials):
                    queues.to_measure.put(job)

    def _build(self, job: Job, place: int) -> Exported | Failed:
        trial = job.trials[place]
        folder = trial.problem.with_suffix("")
        folder.mkdir(exist_ok=True)
        path = folder / f"{next(self._queues.files)}{self._suffix}"
        ask = Export(trial.workload, trial.config, trial.problem, path)
        answer: Exported | Failed = self._worker.call(ask, job.limits.build)
        return answer

    def interrupt(self) -> None:
        """Let it wait no longer."""
        self._worker.process.kill()

    def finish(self) -> None:
        """Wait for its end."""
        if self.ident is not None:
            self.join()
        self._worker.stop()


class BoardThread(threading.Thread):
    """Thread that measures, on a session at a time with a board of the key.

    Parameters
    ----------
    queues : JobQueues
    sessions : BoardSessions
    boards : sequence of BoardThread
        All of the fleet's.
    num_threads : int
        Of a CPU's kernels.
    """

    def __init__(
        self,
        queues: JobQueues,
        sessions: BoardSessions,
        boards: Sequence[BoardThread],
        num_threads: int,
    ) -> None:
        super().__init__(daemon=True, name="tvm-edge-board")
        self._queues, self._sessions, self._boards = queues, sessions, boards
        self._num_threads = num_threads
        self.agent: Agent | None = None

    @property
    def has_session(self) -> bool:
        """True if it could measure now."""
        return self.is_alive() and self.agent is not None and not self.agent.is_lost

    def run(self) -> None:
        """Measure what is built, until the fleet ends or there is no board for it."""
        queues = self._queues
        try:
            while not queues.ending.is_set() and self._has_board():
                try:
                    job = queues.to_measure.get(timeout=CHECK_SECONDS)
                except queue.Empty:
                    continue
                if queues.is_current(job):
                    self._take(job)
        # Whatever it is, the run has to hear of it, and cannot in this thread.
        except Exception as err:
            queues.found.put(err)

    def _has_board(self) -> bool:
        """Open a session unless there is one; without a board this thread is not needed."""
        if self.has_session:
            return True
        ending = self._queues.ending
        agent = self._sessions.open_next(ending, self._others_measure)
        if agent is None:
            return False
        self.agent = agent
        if ending.is_set():
            agent.close()
            return False
        # One that is let alone is held, lest others get it: the thread ends, the session stays.
        return agent.address not in self._sessions.quarantined

    def _others_measure(self) -> bool:
        return any(board.has_session for board in self._boards if board is not self)

    def _take(self, job: Job) -> None:
        queues, agent = self._queues, self.agent
        assert agent is not None
        try:
            found = self._measured(job, agent)
        except (DeviceLost, MeasureTimeout) as err:
            agent.close()
            if queues.ending.is_set():
                return
            self._sessions.count_loss(agent.address, err)
            job.lost[job.at] += 1
            # One that hangs would hang again; of one that was lost the board may be the reason.
            if isinstance(err, MeasureTimeout) or job.lost[job.at] >= _MOST_TRIES:
                queues.tell(job, job.at, Failed(type(err).__name__, str(err), ran=True))
                del job.trials[job.at], job.exported[job.at]
            if job.trials:
                queues.to_measure.put(job)
            return
        self._sessions.forget_losses(agent.address)
        if any(isinstance(answer, Failed) and answer.ran for answer in found.values()):
            agent.close()  # it may have written anywhere
        for place, answer in found.items():
            queues.tell(job, place, answer)
            job.exported[place].library.unlink(missing_ok=True)

    def _measured(self, job: Job, agent: Agent) -> dict[int, Done | Failed]:
        found: dict[int, Done | Failed] = {}
        tokens: dict[int, int] = {}
        limits = job.limits
        for place in job.trials:
            job.at = place
            opened = self._opened(job, agent)
            if isinstance(opened, Failed):
                found[place] = opened
            else:
                tokens[place], found[place] = opened, Done()
        # Several take turns, a timing each; one has all its timings at once.
        turns, rounds = (job.rounds, 1) if len(job.trials) > 1 else (1, job.rounds)
        for _ in range(turns):
            for place, token in tokens.items():
                before = found[place]
                if isinstance(before, Failed):
                    continue
                job.at = place
                hopeless = limits.hopeless * job.trials[place].best
                ask = {
                    "candidate": token,
                    "rounds": rounds,
                    "seconds": job.seconds,
                    # Numbers that are not finite do not travel.
                    "hopeless": hopeless if turns == 1 and isfinite(hopeless) else None,
                    "cool_down": _COOL_DOWN,
                }
                try:
                    answer = agent.call(Call("candidate_time", ask), limits.measure + _COOL_DOWN)
                except (DeviceLost, MeasureTimeout):
                    raise
                # Whatever a driver says of a candidate is that candidate's.
                except Exception as err:
                    found[place] = Failed(InvalidLaunch.__name__, one_line(err), ran=True)
                else:
                    found[place] = Done((*before.latencies, *answer.values["latencies"]))
        agent.call(Call("candidate_drop", {"candidates": list(tokens.values())}), limits.measure)
        return found

    def _opened(self, job: Job, agent: Agent) -> int | Failed:
        """Send the candidate at hand to the board and have it check the result."""
        exported, names = job.exported[job.at], {}
        for name, path in (("library", exported.library), ("operands", exported.operands)):
            seconds = _UPLOAD_SECONDS + path.stat().st_size / _BYTES_A_SECOND
            try:
                names[name] = agent.call(Upload(path), seconds)
            except MeasureTimeout as err:  # the line's fault, not the candidate's
                raise DeviceLost(str(err)) from err
        ask = {
            **names,
            "shape": exported.shape,
            "num_threads": self._num_threads if exported.shape else 1,
        }
        try:
            answer = agent.call(Call("candidate_open", ask), job.limits.build).values
        except (DeviceLost, MeasureTimeout):
            raise
        # Whatever a driver says of a candidate is that candidate's.
        except Exception as err:
            return Failed(InvalidLaunch.__name__, one_line(err), ran=True)
        error = float("inf") if answer["error"] is None else answer["error"]
        if not error <= tolerance_of(job.trials[job.at].workload):
            message = f"the result is off by {error:.1e} of the largest value"
            return Failed(WrongResult.__name__, message, ran=True)
        return int(answer["candidate"])

    def interrupt(self) -> None:
        """Let it wait no longer."""
        agent = self.agent
        if agent is not None:
            with suppress(ProcessLookupError):
                agent.interrupt()

    def finish(self) -> None:
        """Wait for its end; not long for one that waits for a board, which sees to itself."""
        if self.ident is not None:
            self.join(_JOIN_SECONDS)
        if not self.is_alive() and self.agent is not None:
            self.agent.close()
