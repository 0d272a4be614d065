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
from itertools import count
from typing import Any

from tvm_edge.errors import (
    ArtifactError,
    DeviceLost,
    DeviceUnavailableError,
    TvmEdgeError,
    one_line,
)
from tvm_edge.hardware import resolve_target
from tvm_edge.rpc.address import parse_address
from tvm_edge.rpc.agent import Agent, Call, open_session
from tvm_edge.rpc.description import BoardInfo
from tvm_edge.rpc.fit import check_fit
from tvm_edge.rpc.tracker import served_keys
from tvm_edge.tuning.fleet_threads import (
    CHECK_SECONDS,
    WAIT_SECONDS,
    BoardThread,
    BuilderThread,
    Job,
)
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.worker import Done, Failed, Limits

__all__ = ["Fleet"]

_LOG = logging.getLogger("tvm_edge.tuning")

_ASK_SECONDS = 2.0  # for a tracker to have one, before we look whether the run ends
_TALK_SECONDS = 60.0  # for a board to say what it is; a driver may be slow to start
_MOST_LOSSES = 3  # in a row, after which a board is let alone
_MOST_BOARDS = 64


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

    Raises
    ------
    DeviceUnavailableError
        There is no tracker.
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
        self.target, self.host = target, host
        self.resolved = resolve_target(target, host)
        self._place, self._key, self._check = tracker, key, check
        self._runs, self.files = count(), count()
        self._run = -1
        self.to_build: queue.Queue[tuple[Job, int]] = queue.Queue()
        self.to_measure: queue.Queue[Job] = queue.Queue()
        self.found: queue.Queue[tuple[int, int, Done | Failed] | Exception] = queue.Queue()
        self.ending = threading.Event()
        self._losses: Counter[str] = Counter()  # in a row, by address
        self.quarantined: dict[str, str] = {}
        """Addresses of boards that are let alone, and what happened there last."""
        self.driver = ""
        """Of the boards' device, as the first of them has it."""
        self.building = threading.Lock()
        self._count = builders
        self.size = self._size()
        """How many boards there are at the start."""
        self._builders: list[BuilderThread] = []
        self._boards: list[BoardThread] = []

    @property
    def is_one(self) -> bool:
        """Whether it is a board without a tracker: there is no other."""
        return self._key is None

    @property
    def name(self) -> str:
        """What messages call the boards."""
        return self._key or self._place

    def __enter__(self) -> Fleet:
        try:
            self._boards = [BoardThread(self) for _ in range(self.size)]
            agent = open_session(self._place, self._key, seconds=WAIT_SECONDS)
            self._boards[0].agent = agent
            self.driver = self._greeted(agent)
            self._builders = [BuilderThread(self) for _ in range(self._count)]
            for thread in (*self._builders, *self._boards):
                thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _size(self) -> int:
        if self._key is None:
            return 1
        found = served_keys(parse_address(self._place, "tracker")).get(self._key)
        return min(max(found.total if found else 1, 1), _MOST_BOARDS)

    def close(self) -> None:
        """End sessions and processes, whatever they do."""
        self.ending.set()
        threads: list[BuilderThread | BoardThread] = [*self._boards, *self._builders]
        for thread in threads:
            thread.interrupt()
        for thread in threads:
            thread.finish()

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
        resolved, kind = self.resolved, self.resolved.kind
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
        if self.target == kind and resolved.spec.name != own[0].name:
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
            Job(-1, {place: trial}, limits.rounds, limits.seconds)
            for place, trial in enumerate(trials)
        ]
        yield from self._done(jobs)

    def measure_in_turns(
        self, trials: Sequence[Trial], rounds: int, seconds: float
    ) -> list[Done | Failed]:
        """Candidates of one task timed round by round on one board, each once in a round."""
        job = Job(-1, dict(enumerate(trials)), rounds, seconds)
        found = dict(self._done([job]))
        return [found[place] for place in range(len(trials))]

    def _done(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Done | Failed]]:
        self._run = next(self._runs)
        left = 0
        for job in jobs:
            job.run = self._run
            for place in job.trials:
                self.to_build.put((job, place))
                left += 1
        while left:
            self._check()
            try:
                found = self.found.get(timeout=CHECK_SECONDS)
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
            f"({alone or 'none came back within ' + format(WAIT_SECONDS, 'g') + ' s'}); see to "
            f"them (tvm-edge doctor {self._options()}), and go on with resume=True (--resume): "
            "what was measured is kept"
        )

    # ------------------------------------------------------------------------- what threads say

    def is_current(self, job: Job) -> bool:
        """Whether anybody still waits for it."""
        return job.run == self._run and not self.ending.is_set()

    def tell(self, job: Job, place: int, answer: Done | Failed) -> None:
        """A result."""
        self.found.put((job.run, place, answer))

    def others_measure(self, own: BoardThread) -> bool:
        """Whether a board is there beside that of a thread."""
        return any(board.has_session for board in self._boards if board is not own)

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
