"""Supervisor of TVM's RPC server: ``tvm-edge rpc-server``.

TVM's server does not survive a session that crashes: its process stays, and neither listens nor
registers with the tracker again. Here it is a child process, and another takes its place.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

from tvm_edge.child import Child, ChildEnded
from tvm_edge.errors import DeviceUnavailableError, InputError
from tvm_edge.files import own_name, remove_leftovers
from tvm_edge.rpc.address import Address, parse_address, written
from tvm_edge.rpc.board_info import BoardInfo
from tvm_edge.rpc.listener import Listen, Listening, NotListening
from tvm_edge.rpc.token import read_token
from tvm_edge.rpc.uploads import LIMIT, uploads_folder

__all__ = ["BoardServer", "ended_by_signals"]

_LOG = logging.getLogger(__name__)

_START_SECONDS = 120.0  # a slow board imports TVM in ten
_DESCRIBE_SECONDS = 120.0
_SETTLED_SECONDS = 30.0  # one that ran for so long is started again at once
_WAITS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before the first, second, … try in a row


class BoardServer:
    """TVM's RPC server with our functions, started again whenever it dies.

    Parameters
    ----------
    host : str
        The address to listen on. Without a token there is no authentication: whoever reaches it
        owns the board.
    port, port_end : int
        The first free port of this range; the same one for as long as the server runs.
    tracker : str, optional
        ``host:port`` to register with.
    key : str, optional
        The kind of board; needed with a tracker, and not without one.
    socket : path, optional
        A Unix socket to listen on in place of host and ports, for this user's processes alone.
    token_file : path, optional
        A file with a secret that clients must prove to have.
    upload_bytes : int
        That files which clients sent may take, all together.

    Raises
    ------
    InputError
        An option does not fit.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9090,
        port_end: int = 9200,
        *,
        tracker: str | None = None,
        key: str | None = None,
        socket: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        upload_bytes: int = LIMIT,
    ) -> None:
        if socket is not None and tracker is not None:
            raise InputError(
                "--socket is given with --tracker, which tells clients a port; leave one of them "
                "out",
                name="socket",
            )
        if (tracker is None) != (key is None):
            given, lacking = ("key", "tracker") if tracker is None else ("tracker", "key")
            raise InputError(
                f"--{given} is given without --{lacking}; give both to register with a tracker, "
                "or none to be connected to directly",
                name=lacking,
            )
        if not 0 < port < port_end <= 65536:
            raise InputError(
                f"the ports {port} to before {port_end} are no range; give --port and a larger "
                "--port-end",
                name="port_end",
                expected=f"> {port}, <= 65536",
                got=str(port_end),
            )
        # TVM's protocol separates the key from options by blanks, from a random part by a colon.
        if key is not None and (not key or ":" in key or key.split() != [key]):
            raise InputError(
                f"the key {key!r} is empty, or has blanks or colons; use a word such as mali-t860",
                name="key",
                got=key,
            )
        self._tracker: Address | None = None if tracker is None else parse_address(tracker)
        level = logging.getLogger("tvm_edge").getEffectiveLevel()
        self._listen = Listen(
            host,
            port,
            port_end,
            self._tracker,
            key or "",
            uploads_folder(),
            level,
            socket=None if socket is None else Path(socket).absolute(),
            token=None if token_file is None else read_token(token_file),
            upload_bytes=upload_bytes,
        )
        self._child: Child | None = None
        self._listens = False
        root = Path(tempfile.gettempdir())
        for folder, hidden in ((root, False), (self._listen.uploads, True)):
            remove_leftovers(folder, hidden=hidden)
        self._folder = root / own_name("rpc")

    def __enter__(self) -> BoardServer:
        """Start the server.

        Raises
        ------
        DeviceUnavailableError
            No port is free, the address is not this machine's, or TVM does not load.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Address that it listens on."""
        if self._listen.socket is not None:
            return written((str(self._listen.socket), 0))
        return written((self._listen.host, self._listen.port))

    def describe(self) -> BoardInfo:
        """Describe this board, asked in another process, which a driver may crash.

        Raises
        ------
        DeviceUnavailableError
            It does.
        """
        command = [sys.executable, "-m", "tvm_edge.rpc.board_info"]
        environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=_DESCRIBE_SECONDS, check=True
            )
            return BoardInfo.from_dict(json.loads(done.stdout))
        except (subprocess.SubprocessError, ValueError) as err:
            raise DeviceUnavailableError(
                f"this board cannot say which devices it has ({err}); run: tvm-edge doctor"
            ) from err

    def run(self) -> None:
        """Start the server again whenever it dies, until this process is told to end."""
        tries, since = 0, monotonic()
        while True:
            assert self._child is not None
            status = self._child.process.wait()
            tries = 0 if monotonic() - since > _SETTLED_SECONDS else tries + 1
            seconds = _WAITS[min(tries, len(_WAITS) - 1)]
            _LOG.warning(
                "the server ended with status %s, as it does when a session crashes; starting it "
                "again%s",
                status,
                f" in {seconds:g} s" if seconds else "",
            )
            self._child.stop()
            sleep(seconds)
            since = monotonic()
            try:
                self._start()
            except DeviceUnavailableError as err:
                _LOG.warning("%s", err)

    def close(self) -> None:
        """End the server and its sessions."""
        if self._child is not None:
            self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._listens and self._listen.socket is not None:
            self._listen.socket.unlink(missing_ok=True)

    def _start(self) -> None:
        # Libraries that sessions unpack, and folders of sessions that crashed.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # A session is a fork, and OpenCL does not survive one; the runtime tier has all it needs.
        child = Child(
            "tvm_edge.rpc.listener", {"TMPDIR": str(self._folder), "TVM_USE_RUNTIME_LIB": "1"}
        )
        self._child = child
        child.ask(self._listen, _START_SECONDS)
        if not child.connection.poll(_START_SECONDS):
            child.stop()
            raise DeviceUnavailableError(f"TVM's server did not start within {_START_SECONDS:g} s")
        try:
            answer = child.receive()
        except ChildEnded as err:
            raise DeviceUnavailableError(
                f"TVM's server does not start: {err}; what it wrote on standard error says why"
            ) from None
        if isinstance(answer, NotListening):
            child.process.wait()
            raise DeviceUnavailableError(self._refusal(answer))
        assert isinstance(answer, Listening)
        self._listens = True
        if self._listen.socket is None:  # clients and tunnels know this port now
            self._listen = replace(self._listen, port=answer.port, port_end=answer.port + 1)

    def _refusal(self, answer: NotListening) -> str:
        listen = self._listen
        if listen.socket is not None:
            return (
                f"cannot listen on the socket {str(listen.socket)!r} ({answer.reason}); end the "
                "other server, or give another path with --socket"
            )
        if answer.port_taken:
            return (
                f"no port from {listen.port} to {listen.port_end - 1} is free on {listen.host}; "
                "give others with --port and --port-end"
            )
        return (
            f"cannot listen on {listen.host} ({answer.reason}); give an address of this machine "
            "with --host"
        )


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, with exit status 0, as of a service."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
