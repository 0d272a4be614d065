"""Board at the other end of TVM's RPC, for users."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.rpc.agent import Agent, Call, Upload, open_session
from tvm_edge.rpc.agent_process import Request
from tvm_edge.rpc.board_fit import check_fit
from tvm_edge.rpc.board_info import BoardDevice, BoardInfo
from tvm_edge.rpc.remote_model import RemoteModel
from tvm_edge.runtime.artifact import read_artifact
from tvm_edge.runtime.info import read_info

if TYPE_CHECKING:
    from tvm_edge.diagnosis import Diagnosis

__all__ = ["Remote", "connect"]


class Remote:
    """Session with a board; made by :func:`tvm_edge.connect`, closed by leaving its block.

    The board serves nobody else until then. Methods may be called from any number of threads; the
    board does one thing at a time.
    """

    def __init__(self, agent: Agent, key: str | None, request_timeout: float) -> None:
        self._agent = agent
        self._key = key
        self._seconds = request_timeout
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._agent.is_lost else "open"
        return f"<Remote {self._agent.board}, {state}>"

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_agent"):
            self._agent.close()

    @property
    def key(self) -> str | None:
        """Key that the board is served under; ``None`` without a tracker."""
        return self._key

    @property
    def name(self) -> str:
        """Name of the board in messages."""
        return self._agent.board

    def describe(self) -> BoardInfo:
        """Return architecture, versions, devices and drivers of the board.

        Raises
        ------
        DeviceLost, MeasureTimeout
            The board does not answer any more.
        """
        try:
            return BoardInfo.from_dict(self.request(Call("describe")).values)
        except ValueError as err:
            raise DeviceUnavailableError(
                f"board {self.name} describes itself in a way that cannot be read ({err}); "
                "install tvm-edge there again"
            ) from err

    def devices(self) -> list[BoardDevice]:
        """List the devices of the board that models can run on, the CPU first."""
        return list(self.describe().devices)

    def doctor(self) -> Diagnosis:
        """Check the board's installation, and why its timings vary: governors, clocks, heat."""
        from tvm_edge.diagnosis import Diagnosis

        return Diagnosis.from_dict(self.request(Call("doctor")).values)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        num_threads: int | None = None,
        cpus: Sequence[int] | None = None,
    ) -> RemoteModel:
        """Send an artifact to the board and load it there: ``tvm_edge.load(path, remote=…)``.

        A file that the board has already is not sent again.

        Parameters
        ----------
        path : path
        device, num_threads, cpus : optional
            Device, threads and CPUs of the board, as for :func:`tvm_edge.load`.

        Raises
        ------
        ArtifactError
            Damaged, or made for another architecture, format or TVM version.
        DeviceUnavailableError
            The code needs a CPU feature or device that the board lacks.
        DeviceLost, MeasureTimeout
            The board does not answer any more.
        """
        info = read_info(read_artifact(path))
        there = self._agent.info
        assert there is not None  # open_session greets
        compiled_for, features = info.target["architecture"], info.target["features"]
        check_fit(f"the artifact {str(path)!r}", compiled_for, features, self.name, there)
        given = {
            "file": self.request(Upload(path)),
            "name": str(path),
            "device": device,
            "num_threads": num_threads,
            "cpus": cpus if cpus is None else list(cpus),
        }
        token = self.request(Call("load", given)).values["model"]
        return RemoteModel(info, self.name, self.request, token)

    def request(self, request: Request) -> Any:
        """Send a request and return the board's answer.

        Raises
        ------
        DeviceLost, MeasureTimeout
            It does not, and the session is over.
        TvmEdgeError
            The error that it answers with.
        """
        with self._lock:
            return self._agent.call(request, self._seconds)

    def close(self) -> None:
        """End the session: the board is free for others. Its models are gone."""
        self._agent.close()


def connect(
    address: str,
    key: str | None = None,
    *,
    timeout: float = 30.0,
    request_timeout: float = 300.0,
    token_file: str | os.PathLike[str] | None = None,
) -> Remote:
    """Open a session with a board that runs ``tvm-edge rpc-server``.

    TVM's RPC knows no passwords and no encryption: whoever reaches a server without a token runs
    what they like on the board. Keep servers and trackers on localhost and reach them through SSH.

    Parameters
    ----------
    address : str
        ``"host:port"`` of a tracker; without `key`, of a server, or ``"unix:/path"`` of one that
        listens on a Unix socket.
    key : str, optional
        The kind of board: one that serves this key at the tracker, as soon as one is free.
    timeout : float
        Seconds to wait for a board to be free.
    request_timeout : float
        Seconds after which a request (a run, a benchmark, sending a file) is given up, and the
        session with it.
    token_file : path, optional
        A file with the token of a server that asks for one; default the one that
        ``TVM_EDGE_RPC_TOKEN_FILE`` names. Both sides prove to have it. Nothing is encrypted.

    Returns
    -------
    Remote
        For ``load(path, remote=…)``.

    Raises
    ------
    InputError
        `address` is not an address, a time is not positive.
    DeviceUnavailableError
        No tracker is there, nobody serves the key, all its boards stay busy, or the server has
        another version of tvm-edge or TVM or none of tvm-edge.
    DeviceLost
        The server does not answer.

    Examples
    --------
    >>> with tvm_edge.connect("localhost:9190", "mali") as board:    # doctest: +SKIP
    ...     model = tvm_edge.load("model.tvme", remote=board)
    ...     print(model.benchmark())
    """
    for name, seconds in (("timeout", timeout), ("request_timeout", request_timeout)):
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise InputError(
                f"{name} is {seconds!r}, and must be a positive number of seconds",
                name=name,
                expected="> 0",
                got=str(seconds),
            )
    agent = open_session(address, key, seconds=timeout, token_file=token_file)
    return Remote(agent, key, request_timeout)
