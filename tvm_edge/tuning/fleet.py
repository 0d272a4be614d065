"""Boards of one key, which measure side by side what processes of this machine build for them.

A board that is lost or late ends its session; another begins with whichever board of the key the
tracker has. A candidate that a board was lost with is tried once more, on any of them, since a
board may go for reasons of its own. A board that is lost three times in a row is let alone.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import isfinite
from time import monotonic
from types import TracebackType
from typing import Any

from tvm_edge.errors import (
    ArtifactError,
    DeviceLost,
    DeviceUnavailableError,
    InvalidLaunch,
    MeasureTimeout,
    MissingDependencyError,
    TvmEdgeError,
    WrongResult,
    one_line,
)
from tvm_edge.hardware import resolve_target
from tvm_edge.rpc.address import parse_address
from tvm_edge.rpc.agent import Agent, Call, Upload, open_session
from tvm_edge.rpc.description import BoardInfo
from tvm_edge.rpc.fit import check_fit
from tvm_edge.rpc.tracker import served_keys
from tvm_edge.tuning.candidates import Exported
from tvm_edge.tuning.pool import Limits, Trial, Worker
from tvm_edge.tuning.problem import TOLERANCE
from tvm_edge.tuning.worker import Done, Export, Failed

__all__ = ["Fleet"]

_LOG = logging.getLogger("tvm_edge.tuning")

_WAIT_SECONDS = 60.0  # for a board to be there again: one that crashed starts in half of that
_ASK_SECONDS = 2.0  # for a tracker to have one, before we look whether the run ends
_TALK_SECONDS = 60.0  # for a board to say what it is; a driver may be slow to start
_MOST_LOSSES = 3  # in a row, after which a board is let alone
_MOST_TRIES = 2  # of a candidate that boards are lost with
_MOST_BOARDS = 64
_CHECK_SECONDS = 0.2
_JOIN_SECONDS = 1.0
_COOL_DOWN = 0.1  # seconds between two measurements on a board
_UPLOAD_SECONDS, _BYTES_A_SECOND = 30.0, 200e3


@dataclass
class _Job:
    """Candidates to measure on one board: one, or several in turns."""

    run: int
    trials: dict[int, Trial]
    rounds: int
    seconds: float
    exported: dict[int, Exported] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)  # boards lost with each
    at: int = -1  # the one that a board works on


class Fleet:
    """The boards that serve a key, or one board; used as :class:`~tvm_edge.tuning.pool.Pool` is.

    Parameters
    ----------
    target, host
        As for :func:`tvm_edge.compile`; of the boards.
    tracker : str
        ``host:port`` of a tracker, or of a board's own server.
    key : str or None
        ``None`` for a server without a tracker.
    builders : int
        Processes of this machine that build.
    limits : Limits, optional
    check : callable
        Called every fifth of a second; what it raises ends the wait.
    """

    def __init__(
        self,
        target: Any,
        host: Any,
        tracker: str,
        key: str | None,
        builders: int,
        limits: Limits | None = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits or Limits()
        self._target, self._host = target, host
        self._resolved = resolve_target(target, host)
        self._place, self._key, self._check = tracker, key, check
        self._runs, self._files = count(), count()
        self._run = -1
        self._to_build: queue.Queue[tuple[_Job, int]] = queue.Queue()
        self._to_measure: queue.Queue[_Job] = queue.Queue()
        self._found: queue.Queue[tuple[int, int, Done | Failed] | Exception] = queue.Queue()
        self._ending = threading.Event()
        self._losses: Counter[str] = Counter()  # in a row, by address
        self.quarantined: dict[str, str] = {}
        """Addresses of boards that are let alone, and what happened there last."""
        self.driver = ""
        """Of the boards' device, as the first of them has it."""
        self._building = threading.Lock()
        self._count = builders
        self._builders: list[_Builder] = []
        self._boards: list[_Board] = []

    @property
    def name(self) -> str:
        """What messages call the boards."""
        return self._key or self._place

    def __enter__(self) -> Fleet:
        try:
            self._boards = [_Board(self) for _ in range(self._size())]
            agent = open_session(self._place, self._key, seconds=_WAIT_SECONDS)
            self._boards[0].agent = agent
            self.driver = self._greeted(agent)
            self._builders = [_Builder(self) for _ in range(self._count)]
            for thread in (*self._builders, *self._boards):
                thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def _size(self) -> int:
        if self._key is None:
            return 1
        found = served_keys(parse_address(self._place, "tracker")).get(self._key)
        return min(max(found.total if found else 1, 1), _MOST_BOARDS)

    def close(self) -> None:
        """End sessions and processes, whatever they do."""
        self._ending.set()
        threads: list[_Builder | _Board] = [*self._boards, *self._builders]
        for thread in threads:
            thread.interrupt()
        for thread in threads:
            thread.finish()

    @property
    def size(self) -> int:
        """How many boards there were at the start."""
        return len(self._boards)

    def open(self) -> Agent:
        """A session with a board, and a short wait for one.

        It may be one of :attr:`quarantined`, as one becomes that cannot run what is built here.

        Raises
        ------
        DeviceUnavailableError, DeviceLost
        """
        agent = open_session(self._place, self._key, seconds=_ASK_SECONDS)
        with agent.closed_on_error():
            if agent.address not in self._losses:
                try:
                    self._greeted(agent)
                except (ArtifactError, DeviceUnavailableError) as err:
                    _LOG.warning("%s", err)
                    self.quarantined[agent.address] = one_line(err)
        return agent

    def _greeted(self, agent: Agent) -> str:
        """See that a board has the device that is tuned for: its driver.

        Raises
        ------
        ArtifactError, DeviceUnavailableError
            It has not.
        """
        assert agent.info is not None  # open_session greets
        resolved, kind = self._resolved, self._resolved.kind
        name = f"{self.name} at {agent.address}"
        what = f"what is tuned for {resolved.spec.name}"
        check_fit(what, resolved.architecture, resolved.features, name, agent.info)
        for check in agent.call(Call("clocks"), _TALK_SECONDS).values["checks"]:
            if check["status"] == "wrong":
                _LOG.warning("board %s: %s: %s", name, check["name"], check["found"])
        self._losses[agent.address] = 0
        if kind == "llvm":
            return ""
        devices = BoardInfo.from_dict(agent.call(Call("describe"), _TALK_SECONDS).values).devices
        own = [device for device in devices if device.target == kind]
        if not own:
            raise DeviceUnavailableError(
                f"board {name} has no {kind} device; see what it has with: tvm-edge devices "
                f"{self._options()}"
            )
        # Of a plain kind the device is this machine's, where nothing else is said.
        if self._target == kind and resolved.spec.name != own[0].name:
            raise DeviceUnavailableError(
                f"the target {kind!r} is {resolved.spec.name}, and board {name} has "
                f"{own[0].name}; name it: a preset, a tag, or a dict with the host's triple"
            )
        return own[0].driver

    def _options(self) -> str:
        key = f" --rpc-key {self._key}" if self._key else ""
        return f"--rpc-tracker {self._place}{key}"

    # ------------------------------------------------------------------------ what tuning asks

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[int, Done | Failed]]:
        """Build and measure; yields each trial's place and result as it comes.

        Raises
        ------
        DeviceLost
            No board is left.
        MissingDependencyError
            There is no linker for the boards.
        """
        limits = self.limits
        jobs = [
            _Job(-1, {place: trial}, limits.rounds, limits.seconds)
            for place, trial in enumerate(trials)
        ]
        yield from self._done(jobs)

    def measure_in_turns(
        self, trials: Sequence[Trial], rounds: int, seconds: float
    ) -> list[Done | Failed]:
        """Candidates of one task timed round by round on one board, each once in a round."""
        job = _Job(-1, dict(enumerate(trials)), rounds, seconds)
        found = dict(self._done([job]))
        return [found[place] for place in range(len(trials))]

    def _done(self, jobs: Sequence[_Job]) -> Iterator[tuple[int, Done | Failed]]:
        self._run = next(self._runs)
        left = 0
        for job in jobs:
            job.run = self._run
            for place in job.trials:
                self._to_build.put((job, place))
                left += 1
        while left:
            self._check()
            try:
                found = self._found.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if not any(board.is_alive() for board in self._boards):
                    raise self._none_left() from None
                continue
            if isinstance(found, Exception):
                raise found
            run, place, answer = found
            if run == self._run:
                left -= 1
                yield place, answer

    def _none_left(self) -> DeviceLost:
        alone = "; ".join(f"{address}: {why}" for address, why in self.quarantined.items())
        return DeviceLost(
            f"no board {self.name} is left to measure on "
            f"({alone or 'none came back within ' + format(_WAIT_SECONDS, 'g') + ' s'}); see to "
            f"them (tvm-edge doctor {self._options()}), and go on with resume=True (--resume): "
            "what was measured is kept"
        )

    # ------------------------------------------------------------------------- what threads say

    def is_current(self, job: _Job) -> bool:
        """Whether anybody still waits for it."""
        return job.run == self._run and not self._ending.is_set()

    def tell(self, job: _Job, place: int, answer: Done | Failed) -> None:
        """A result."""
        self._found.put((job.run, place, answer))

    def board_lost(self, address: str, err: TvmEdgeError) -> None:
        """Count the loss of a board."""
        self._losses[address] += 1
        if self._losses[address] < _MOST_LOSSES:
            _LOG.info("board %s at %s: %s", self.name, address, one_line(err))
            return
        self.quarantined[address] = one_line(err)
        _LOG.warning(
            "board %s at %s was lost %d times in a row and is let alone: %s",
            self.name,
            address,
            _MOST_LOSSES,
            one_line(err),
        )

    def board_works(self, address: str) -> None:
        """Forget its losses."""
        self._losses[address] = 0


class _Builder(threading.Thread):
    """Has one process of this machine build."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True, name="tvm-edge-build")
        self._fleet = fleet
        self._worker = Worker(fleet._target, fleet._host, 1)

    def run(self) -> None:
        """Build what is asked for, until the fleet ends."""
        fleet = self._fleet
        while not fleet._ending.is_set():
            try:
                job, place = fleet._to_build.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if not fleet.is_current(job):
                continue
            try:
                answer = self._build(job.trials[place])
            # Whatever it is, the run has to hear of it, and cannot in this thread.
            except Exception as err:
                fleet._found.put(err)
                return
            with fleet._building:  # others build for the same job
                if isinstance(answer, Failed):
                    fleet.tell(job, place, answer)
                    del job.trials[place]
                else:
                    job.exported[place] = answer
                if job.trials and len(job.exported) == len(job.trials):
                    fleet._to_measure.put(job)

    def _build(self, trial: Trial) -> Exported | Failed:
        fleet, worker = self._fleet, self._worker
        while not worker.ready:
            self._answer()
        folder = trial.problem.with_suffix("")
        folder.mkdir(exist_ok=True)
        kernel = fleet._resolved.kind == "llvm"
        path = folder / f"{next(fleet._files)}{'.so' if kernel else '.tvme'}"
        worker.ask(Export(trial.workload, trial.config, trial.problem, path), fleet.limits.build)
        answer = self._answer()
        if isinstance(answer, Failed) and answer.error == MissingDependencyError.__name__:
            raise MissingDependencyError(answer.message)
        return answer

    def _answer(self) -> Any:
        worker = self._worker
        if not worker.connection.poll(max(0.0, worker.deadline - monotonic())):
            return worker.replaced(MeasureTimeout, "it ran past its time")
        return worker.answer()

    def interrupt(self) -> None:
        """Let it wait no longer."""
        self._worker.process.kill()

    def finish(self) -> None:
        """Wait for its end."""
        if self.ident is not None:
            self.join()
        self._worker.stop()


class _Board(threading.Thread):
    """Has one session at a time, with a board of the key, and measures."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True, name="tvm-edge-board")
        self._fleet = fleet
        self.agent: Agent | None = None

    def run(self) -> None:
        """Measure what is built, until the fleet ends or there is no board for it."""
        fleet = self._fleet
        while not fleet._ending.is_set():
            if not self._has_board():
                return
            try:
                job = fleet._to_measure.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if fleet.is_current(job):
                self._take(job)

    def _has_board(self) -> bool:
        """A session, opened if there is none; if not, this thread is not needed any more."""
        fleet = self._fleet
        if self.agent is not None and not self.agent.is_lost:
            return True
        end = monotonic() + _WAIT_SECONDS
        while not fleet._ending.is_set():
            try:
                self.agent = fleet.open()
            except (DeviceLost, DeviceUnavailableError, MeasureTimeout) as err:
                if monotonic() < end:
                    fleet._ending.wait(_CHECK_SECONDS)
                    continue
                _LOG.warning("one board %s less measures: %s", fleet.name, one_line(err))
                return False
            if fleet._ending.is_set():
                self.agent.close()
                return False
            # One that is let alone is held, lest others get it: the thread ends, the session stays.
            return self.agent.address not in fleet.quarantined
        return False

    def _take(self, job: _Job) -> None:
        fleet, agent = self._fleet, self.agent
        assert agent is not None
        try:
            found = self._measured(job, agent)
        except (DeviceLost, MeasureTimeout) as err:
            agent.close()
            if fleet._ending.is_set():
                return
            fleet.board_lost(agent.address, err)
            job.lost[job.at] += 1
            # One that hangs would hang again; of one that was lost the board may be the reason.
            if isinstance(err, MeasureTimeout) or job.lost[job.at] >= _MOST_TRIES:
                fleet.tell(job, job.at, Failed(type(err).__name__, str(err), ran=True))
                del job.trials[job.at], job.exported[job.at]
            if job.trials:
                fleet._to_measure.put(job)
            return
        fleet.board_works(agent.address)
        if any(isinstance(answer, Failed) and answer.ran for answer in found.values()):
            agent.close()  # it may have written anywhere
        for place, answer in found.items():
            fleet.tell(job, place, answer)
            job.exported[place].library.unlink(missing_ok=True)

    def _measured(self, job: _Job, agent: Agent) -> dict[int, Done | Failed]:
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
            names[name] = agent.call(Upload(path), seconds)
        ask = {
            **names,
            "shape": exported.shape,
            "num_threads": self._fleet._resolved.spec.cores if exported.shape else 1,
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
