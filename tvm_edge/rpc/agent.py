"""Session with a board, held by a process of its own, with a bound on every wait.

>>> agent = open_session("127.0.0.1:9190", "mali", seconds=30)       # doctest: +SKIP
>>> name = agent.call(Upload("model.tvme"), 60)                      # doctest: +SKIP
>>> agent.ask(Call("load", {"file": name, …}), 60)                   # doctest: +SKIP
>>> multiprocessing.connection.wait([agent.connection], 1)           # doctest: +SKIP
>>> agent.answer().values                                            # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from tvm_edge.child import Child, ChildEnded
from tvm_edge.errors import (
    DeviceLost,
    DeviceUnavailableError,
    MeasureTimeout,
    TvmEdgeError,
    one_line,
)
from tvm_edge.rpc.address import Address, parse_address, written
from tvm_edge.rpc.agent_process import Call, Open, Request, Reserve, Upload
from tvm_edge.rpc.board_info import BoardInfo
from tvm_edge.rpc.failures import raised_on
from tvm_edge.rpc.message import Message
from tvm_edge.rpc.token import chosen_token

__all__ = ["Agent", "Call", "Upload", "open_session"]

_LOG = logging.getLogger(__name__)

_START_SECONDS = 60.0
_OPEN_SECONDS = 10.0  # for a server to answer: a slow board forks its session in two
_ANSWER_SECONDS = 10.0  # for a tracker, beyond the wait for a board

# The client half of TVM's runtime library: half a second, and no driver is opened.
_ENVIRONMENT = {"TVM_USE_RUNTIME_LIB": "1", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}


class Agent:
    """Session with one board; made by :func:`open_session`.

    One request at a time: :meth:`ask`, then :meth:`answer`. A board that is late or gone costs the
    session: the process that holds it is killed, and every further request raises
    :class:`~tvm_edge.errors.DeviceLost`.

    Attributes
    ----------
    board : str
        What messages call the board: its key, or the server's address.
    address : str
        Of the server: tells boards of one key apart.
    info : BoardInfo or None
        What the board said first, without its devices.
    """

    def __init__(self, board: str) -> None:
        self.board = board
        self.address = ""
        self.info: BoardInfo | None = None
        self._lost = ""
        self._asked: Request | None = None
        self._child = Child("tvm_edge.rpc.agent_process", _ENVIRONMENT)
        self._child.deadline = monotonic() + _START_SECONDS
        self._seconds = _START_SECONDS
        with self.closed_on_error():
            self.answer()

    @property
    def connection(self) -> Connection:
        """Connection for :func:`multiprocessing.connection.wait`, ready when an answer is there."""
        return self._child.connection

    @property
    def deadline(self) -> float:
        """Deadline of the request at hand, as :func:`time.monotonic` counts."""
        return self._child.deadline

    @property
    def is_lost(self) -> bool:
        """True if the session is over."""
        return bool(self._lost)

    def ask(self, request: Request, seconds: float) -> None:
        """Begin a request, to be answered within so many seconds; does not wait.

        Raises
        ------
        DeviceLost
            The session is over.
        """
        if self._lost:
            raise DeviceLost(self._lost)
        self._asked, self._seconds = request, seconds
        self._child.ask(request, seconds)

    def answer(self) -> Any:
        """Return the answer to the request at hand; waits until :attr:`deadline` at the most.

        Returns
        -------
        Message or str
            Of a :class:`Call`, or the name of an :class:`Upload` on the board.

        Raises
        ------
        MeasureTimeout
            It did not come in time; the session is over.
        DeviceLost
            The board or the connection is gone; the session is over.
        TvmEdgeError
            What the board answered, of the class that it has there.
        """
        if not self._child.connection.poll(max(0.0, self._child.deadline - monotonic())):
            self._lose("a request was not answered")
            raise self._late()
        try:
            answer = self._child.receive()
        except ChildEnded as err:
            self._lose(str(err))
            raise DeviceLost(
                f"the process that holds the session with board {self.board} is gone: {err}; "
                "connect again"
            ) from None
        if isinstance(answer, TvmEdgeError):
            if isinstance(answer, DeviceLost):
                self._lose("the server is gone")
            answer.args = (f"board {self.board}: {answer}",) if self.info else answer.args
            raise answer
        if isinstance(answer, Message):
            if "failure" in answer.values:
                raise raised_on(self.board, answer.values["failure"])
            return replace(answer, values=answer.values.get("result", {}))
        return answer

    def call(self, request: Request, seconds: float) -> Any:
        """Send a request and wait for its answer."""
        self.ask(request, seconds)
        try:
            return self.answer()
        except BaseException as err:
            if not isinstance(err, Exception):  # Ctrl-C: the answer is still to come
                self.close()
            raise

    def open(self, server: Address, match_key: str, token: bytes | None, seconds: float) -> None:
        """Begin the session itself; for :func:`open_session`."""
        self.address = written(server)
        self.call(Open(server, match_key, token, seconds), seconds)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the session if the block raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def interrupt(self) -> None:
        """End the session while another thread waits for an answer: it gets a ``DeviceLost``."""
        self._child.process.kill()

    def close(self) -> None:
        """End the session. The board notices, and is free again."""
        self._lose("the session was closed")

    def _lose(self, why: str) -> None:
        if not self._lost:
            _LOG.debug("board %s: the session ends: %s", self.board, why)
            self._lost = f"the session with board {self.board} is over ({why}); connect again"
            self._child.stop()

    def _late(self) -> TvmEdgeError:
        what, seconds = self._asked, f"{self._seconds:g} s"
        if what is None:
            return DeviceLost(f"the process for a session did not start within {seconds}")
        if isinstance(what, Open):
            return DeviceLost(
                f"the server {written(what.server)} takes connections, and did not answer within "
                f"{seconds}: it serves another session, or hangs; wait, or restart tvm-edge "
                "rpc-server there"
            )
        if isinstance(what, Reserve):
            return DeviceUnavailableError(
                f"the tracker {written(what.tracker)} did not answer within {seconds}; restart it"
            )
        name = what.function if isinstance(what, Call) else f"uploading {str(what.path)!r}"
        return MeasureTimeout(
            f"board {self.board}: {name} took more than {seconds}, and the session was ended; "
            "connect again, with more time if it needs it"
        )


def open_session(
    address: str,
    key: str | None,
    *,
    seconds: float,
    token_file: str | os.PathLike[str] | None = None,
) -> Agent:
    """Open a session with a board that has this version of tvm-edge and TVM.

    Parameters
    ----------
    address : str
        ``host:port`` of a tracker, or of a server without one.
    key : str or None
        Of boards at a tracker; ``None`` for a server.
    seconds : float
        To wait for a board to be free.
    token_file : path, optional
        A file with the server's token; default the one that ``TVM_EDGE_RPC_TOKEN_FILE`` names.

    Raises
    ------
    InputError
        `address` is no address, or the file of the token is none.
    DeviceUnavailableError
        No tracker, a key nobody serves, boards that stay busy, a server that is not ours or has
        other versions.
    DeviceLost
        The server does not answer.
    """
    place, token = parse_address(address), chosen_token(token_file)
    if key is None:
        agent = Agent(address)
        with agent.closed_on_error():
            agent.open(place, "", token, _OPEN_SECONDS)
            return _greeted(agent)
    end = monotonic() + seconds
    while True:
        agent = Agent(key)
        try:
            with agent.closed_on_error():
                left = max(end - monotonic(), 0.0)
                grant = agent.call(Reserve(place, key, left), left + _ANSWER_SECONDS)
                agent.open(grant.address, grant.match_key, token, _OPEN_SECONDS)
                return _greeted(agent)
        except DeviceLost as err:
            # A board that died while it was registered; there may be another.
            if monotonic() >= end:
                raise
            _LOG.info("another board of the key %r is asked for: %s", key, err)


def _greeted(agent: Agent) -> Agent:
    from tvm_edge.runtime.info import versions

    greeting = agent.call(Call("hello"), _OPEN_SECONDS).values
    try:
        info = BoardInfo.from_dict({**greeting, "devices": []})
    except ValueError as err:
        raise DeviceUnavailableError(
            f"board {agent.board} greets in a way that cannot be read ({one_line(err)}); install "
            f"this version there: pip install tvm-edge=={versions()['tvm_edge']}"
        ) from err
    for package, name in (("tvm", "apache-tvm"), ("tvm_edge", "tvm-edge")):
        here, there = versions()[package], info.versions.get(package)
        if there != here:
            raise DeviceUnavailableError(
                f"board {agent.board} has {name} {there}, and this machine {here}; on the board "
                f"run: pip install {name}=={here}"
            )
    agent.info = info
    return agent
