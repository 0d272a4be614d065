"""What a fleet's threads do: one has a process of this machine build, one has a board measure."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING

from tvm_edge.errors import (
    DeviceLost,
    DeviceUnavailableError,
    InvalidLaunch,
    MeasureTimeout,
    WrongResult,
    one_line,
)
from tvm_edge.rpc.agent import Agent, Call, Upload
from tvm_edge.tuning.candidate_worker import Export, start_worker
from tvm_edge.tuning.candidates import Exported
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.problem import TOLERANCE
from tvm_edge.tuning.worker import Done, Failed

if TYPE_CHECKING:
    from tvm_edge.tuning.fleet import Fleet

__all__ = ["CHECK_SECONDS", "WAIT_SECONDS", "BoardThread", "BuilderThread", "Job"]

_LOG = logging.getLogger("tvm_edge.tuning")

CHECK_SECONDS = 0.2
"""How often a thread looks whether the fleet ends."""

WAIT_SECONDS = 60.0
"""For a board to be there again: one that crashed starts in half of that."""

_MOST_TRIES = 2  # of a candidate that boards are lost with
_JOIN_SECONDS = 1.0
_COOL_DOWN = 0.1  # seconds between two measurements on a board
_UPLOAD_SECONDS, _BYTES_A_SECOND = 30.0, 200e3


@dataclass
class Job:
    """Candidates to measure on one board: one, or several in turns."""

    run: int
    trials: dict[int, Trial]
    rounds: int
    seconds: float
    exported: dict[int, Exported] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)  # boards lost with each
    at: int = -1  # the one that a board works on


class BuilderThread(threading.Thread):
    """Has one process of this machine build."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True, name="tvm-edge-build")
        self._fleet = fleet
        self._worker = start_worker(fleet.target, fleet.host, 1)

    def run(self) -> None:
        """Build what is asked for, until the fleet ends."""
        fleet = self._fleet
        while not fleet.ending.is_set():
            try:
                job, place = fleet.to_build.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                continue
            if not fleet.is_current(job):
                continue
            try:
                answer = self._build(job.trials[place])
            # Whatever it is, the run has to hear of it, and cannot in this thread.
            except Exception as err:
                fleet.found.put(err)
                return
            with fleet.building:  # others build for the same job
                if isinstance(answer, Failed):
                    fleet.tell(job, place, answer)
                    del job.trials[place]
                else:
                    job.exported[place] = answer
                if job.trials and len(job.exported) == len(job.trials):
                    fleet.to_measure.put(job)

    def _build(self, trial: Trial) -> Exported | Failed:
        fleet = self._fleet
        folder = trial.problem.with_suffix("")
        folder.mkdir(exist_ok=True)
        kernel = fleet.resolved.kind == "llvm"
        path = folder / f"{next(fleet.files)}{'.so' if kernel else '.tvme'}"
        ask = Export(trial.workload, trial.config, trial.problem, path)
        answer: Exported | Failed = self._worker.call(ask, fleet.limits.build)
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
    """Has one session at a time, with a board of the key, and measures."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True, name="tvm-edge-board")
        self._fleet = fleet
        self.agent: Agent | None = None

    @property
    def has_session(self) -> bool:
        """Whether it could measure now."""
        return self.is_alive() and self.agent is not None and not self.agent.is_lost

    def run(self) -> None:
        """Measure what is built, until the fleet ends or there is no board for it."""
        fleet = self._fleet
        try:
            while not fleet.ending.is_set() and self._has_board():
                try:
                    job = fleet.to_measure.get(timeout=CHECK_SECONDS)
                except queue.Empty:
                    continue
                if fleet.is_current(job):
                    self._take(job)
        # Whatever it is, the run has to hear of it, and cannot in this thread.
        except Exception as err:
            fleet.found.put(err)

    def _has_board(self) -> bool:
        """A session, opened if there is none; if not, this thread is not needed any more."""
        fleet = self._fleet
        if self.has_session:
            return True
        if fleet.is_one and fleet.quarantined:
            return False
        end = monotonic() + WAIT_SECONDS
        while not fleet.ending.is_set():
            try:
                self.agent = fleet.open()
            except (DeviceLost, DeviceUnavailableError, MeasureTimeout) as err:
                # One that boots takes minutes, and the others go on meanwhile.
                if monotonic() < end or fleet.others_measure(self):
                    fleet.ending.wait(CHECK_SECONDS)
                    continue
                _LOG.warning("one board %s less measures: %s", fleet.name, one_line(err))
                return False
            if fleet.ending.is_set():
                self.agent.close()
                return False
            # One that is let alone is held, lest others get it: the thread ends, the session stays.
            return self.agent.address not in fleet.quarantined
        return False

    def _take(self, job: Job) -> None:
        fleet, agent = self._fleet, self.agent
        assert agent is not None
        try:
            found = self._measured(job, agent)
        except (DeviceLost, MeasureTimeout) as err:
            agent.close()
            if fleet.ending.is_set():
                return
            fleet.board_lost(agent.address, err)
            job.lost[job.at] += 1
            # One that hangs would hang again; of one that was lost the board may be the reason.
            if isinstance(err, MeasureTimeout) or job.lost[job.at] >= _MOST_TRIES:
                fleet.tell(job, job.at, Failed(type(err).__name__, str(err), ran=True))
                del job.trials[job.at], job.exported[job.at]
            if job.trials:
                fleet.to_measure.put(job)
            return
        fleet.board_works(agent.address)
        if any(isinstance(answer, Failed) and answer.ran for answer in found.values()):
            agent.close()  # it may have written anywhere
        for place, answer in found.items():
            fleet.tell(job, place, answer)
            job.exported[place].library.unlink(missing_ok=True)

    def _measured(self, job: Job, agent: Agent) -> dict[int, Done | Failed]:
        found: dict[int, Done | Failed] = {}
        tokens: dict[int, int] = {}
        limits = self._fleet.limits
        for place in job.trials:
            job.at = place
            opened = self._opened(job.exported[place], agent)
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

    def _opened(self, exported: Exported, agent: Agent) -> int | Failed:
        """Send a candidate to the board and have it check the result."""
        names = {}
        for name, path in (("library", exported.library), ("operands", exported.operands)):
            seconds = _UPLOAD_SECONDS + path.stat().st_size / _BYTES_A_SECOND
            try:
                names[name] = agent.call(Upload(path), seconds)
            except MeasureTimeout as err:  # the line's fault, not the candidate's
                raise DeviceLost(str(err)) from err
        ask = {
            **names,
            "shape": exported.shape,
            "num_threads": self._fleet.resolved.spec.cores if exported.shape else 1,
        }
        try:
            answer = agent.call(Call("candidate_open", ask), self._fleet.limits.build).values
        except (DeviceLost, MeasureTimeout):
            raise
        # Whatever a driver says of a candidate is that candidate's.
        except Exception as err:
            return Failed(InvalidLaunch.__name__, one_line(err), ran=True)
        error = float("inf") if answer["error"] is None else answer["error"]
        if not error <= TOLERANCE:
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
