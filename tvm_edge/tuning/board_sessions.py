"""Sessions with the boards of one key, for tuning.

A board has to have the device that is tuned for. One that is lost three times in a row is let
alone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from tvm_edge.errors import (
    ArtifactError,
    DeviceLost,
    DeviceUnavailableError,
    MeasureTimeout,
    TvmEdgeError,
    one_line,
)
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.rpc.address import parse_address
from tvm_edge.rpc.agent import Agent, Call, open_session
from tvm_edge.rpc.board_fit import check_fit
from tvm_edge.rpc.board_info import BoardInfo
from tvm_edge.rpc.tracker import served_keys

__all__ = ["BoardSessions"]

_LOG = logging.getLogger("tvm_edge.tuning")

# For a board to be there again: one that crashed starts in half of that.
_WAIT_SECONDS = 60.0
_ASK_SECONDS = 2.0  # for a tracker to have one, before we look whether the run ends
_RETRY_SECONDS = 0.2
_TALK_SECONDS = 60.0  # for a board to say what it is; a driver may be slow to start
_MOST_LOSSES = 3  # in a row, after which a board is let alone
_MOST_BOARDS = 64


class BoardSessions:
    """Sessions with boards, and what became of these.

    Parameters
    ----------
    resolved : ResolvedTarget
        The device that is tuned for.
    target
        As it was given.
    tracker : str
        ``host:port`` of a tracker, or of a board's own server.
    key : str or None
        ``None`` for a server without a tracker.

    Attributes
    ----------
    size : int
        How many boards there are at the start.
    quarantined : dict of str to str
        Addresses of boards that are let alone, and what happened there last.
    driver : str
        Of the boards' device, as the first of them has it.

    Raises
    ------
    DeviceUnavailableError
        There is no tracker.
    """

    def __init__(
        self, resolved: ResolvedTarget, target: Any, tracker: str, key: str | None
    ) -> None:
        self._resolved, self._target = resolved, target
        self._place, self._key = tracker, key
        self._losses: Counter[str] = Counter()  # in a row, by address
        self.quarantined: dict[str, str] = {}
        self.driver = ""
        self.size = self._count()

    @property
    def name(self) -> str:
        """Name of the boards in messages."""
        return self._key or self._place

    def _count(self) -> int:
        if self._key is None:
            return 1
        found = served_keys(parse_address(self._place, "tracker")).get(self._key)
        return min(max(found.total if found else 1, 1), _MOST_BOARDS)

    def open_first(self) -> Agent:
        """Open a session, and wait long for it; the board has to fit.

        Raises
        ------
        ArtifactError, DeviceUnavailableError, DeviceLost
        """
        agent = open_session(self._place, self._key, seconds=_WAIT_SECONDS)
        with agent.closed_on_error():
            self.driver = self._check(agent)
        return agent

    def open_next(
        self, ending: threading.Event, others_measure: Callable[[], bool]
    ) -> Agent | None:
        """Open a session as soon as there is a board for it.

        It may be one of :attr:`quarantined`, as one becomes that cannot run what is built here.

        Parameters
        ----------
        ending : threading.Event
            Ends the wait.
        others_measure : callable
            Whether it may wait for longer: a board that boots takes minutes.

        Returns
        -------
        Agent or None
            ``None`` if no board came.
        """
        if self._key is None and self.quarantined:  # there is no other
            return None
        end = monotonic() + _WAIT_SECONDS
        while not ending.is_set():
            try:
                return self._open()
            except (DeviceLost, DeviceUnavailableError, MeasureTimeout) as err:
                if monotonic() >= end and not others_measure():
                    _LOG.warning("one board %s less measures: %s", self.name, one_line(err))
                    return None
                ending.wait(_RETRY_SECONDS)
        return None

    def _open(self) -> Agent:
        agent = open_session(self._place, self._key, seconds=_ASK_SECONDS)
        with agent.closed_on_error():
            if agent.address not in self._losses:
                try:
                    self._check(agent)
                except (ArtifactError, DeviceUnavailableError) as err:
                    _LOG.warning("%s", err)
                    self.quarantined[agent.address] = one_line(err)
        return agent

    def _check(self, agent: Agent) -> str:
        """See that a board has the device that is tuned for; return its driver.

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
        if resolved.host is None:
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

    def count_loss(self, address: str, err: TvmEdgeError) -> None:
        """Count the loss of a board; let it alone if it was one too many."""
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

    def forget_losses(self, address: str) -> None:
        """Begin to count anew: the board works."""
        self._losses[address] = 0

    def none_left(self) -> DeviceLost:
        """Return the error of a run without boards."""
        alone = "; ".join(f"{address}: {why}" for address, why in self.quarantined.items())
        return DeviceLost(
            f"no board {self.name} is left to measure on "
            f"({alone or 'none came back within ' + format(_WAIT_SECONDS, 'g') + ' s'}); see to "
            f"them (tvm-edge doctor {self._options()}), and go on with resume=True (--resume): "
            "what was measured is kept"
        )
