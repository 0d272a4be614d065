"""Process in which TVM's RPC server listens; it dies with its session, and is started again.

TVM's server forks a process for each session and waits for it. Two of its functions are replaced
here: what that process runs, so that it has our functions and ends when its client is gone, and how
a tracker is reached, as TVM's way gives up after a minute and, where the network is down, does not
wait between its tries. And its loop takes connections from a gate (:mod:`tvm_edge.rpc.gate`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from tvm_edge.child import connection_to_parent, end_with_parent, end_with_thread
from tvm_edge.errors import one_line
from tvm_edge.rpc.address import Address, written
from tvm_edge.rpc.gate import Gate

__all__ = ["Listen", "Listening", "NotListening"]

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_BACKLOG = 64
_KEEPALIVE = {  # a client that was switched off is noticed after 45 s
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}


@dataclass(frozen=True)
class Listen:
    """Order to listen: addresses, tracker, and the folder of files that are sent.

    Attributes
    ----------
    host : str
    port, port_end : int
        The first free port from `port` to before `port_end`.
    tracker : (str, int) or None
    key : str
    uploads : path
    verbosity : int
        A level of :mod:`logging`.
    handshake_seconds : float
        For one who connects, or the tracker, to say the next word.
    alone_seconds : float
        In which a session whose client is gone ends by itself.
    socket : path or None
        A Unix socket to listen on, in place of host and port.
    token : bytes or None
        What clients must prove to have.
    upload_bytes : int
        That files which clients sent may take, all together.
    """

    host: str
    port: int
    port_end: int
    tracker: Address | None
    key: str
    uploads: Path
    verbosity: int
    handshake_seconds: float = 5.0
    alone_seconds: float = 3.0
    socket: Path | None = None
    token: bytes | None = field(default=None, repr=False)
    upload_bytes: int = 1 << 30


@dataclass(frozen=True)
class Listening:
    """Answer that it listens."""

    port: int


@dataclass(frozen=True)
class NotListening:
    """Answer that it does not listen, and why."""

    reason: str
    port_taken: bool


def main() -> None:
    """Serve until a session crashes, as the first message of the connection says."""
    end_with_parent()
    with connection_to_parent() as connection:
        try:
            listen: Listen = connection.recv()
        except EOFError:
            return
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("tvm_edge").setLevel(listen.verbosity)
        # Every socket from here on; a session gives its own back its patience.
        socket.setdefaulttimeout(listen.handshake_seconds)
        try:
            listening = _listening(listen)
        except OSError as err:
            taken = err.errno == errno.EADDRINUSE
            connection.send(NotListening(one_line(err), taken))
            return
        thread = _server(listen, listening)
        connection.send(Listening(0 if listen.socket else int(listening.getsockname()[1])))
        thread.join()


def _listening(listen: Listen) -> socket.socket:
    """Return a socket that listens.

    Raises
    ------
    OSError
        No port is free, or the address is not this machine's.
    """
    if listen.socket is not None:
        return _on_unix_socket(listen.socket)
    for port in range(listen.port, listen.port_end):
        try:
            return socket.create_server(
                (listen.host, port),
                family=socket.AF_INET6 if ":" in listen.host else socket.AF_INET,
                backlog=_BACKLOG,
            )
        except OSError as err:
            if err.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port is free")


def _on_unix_socket(path: Path) -> socket.socket:
    """Listen where this user alone connects; a socket that nobody listens on gives way."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "something else is there", str(path))
        with socket.socket(socket.AF_UNIX) as probe:
            if not probe.connect_ex(str(path)):
                raise OSError(errno.EADDRINUSE, "another server listens there", str(path))
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    listening.listen(_BACKLOG)
    return listening


def _server(listen: Listen, listening: socket.socket) -> threading.Thread:
    from tvm.rpc import base, server

    from tvm_edge.rpc.board import board_functions, register

    inner_loop, parent = server._serve_loop, os.getpid()
    gate = Gate(listening, base.RPC_MAGIC, listen.token, listen.handshake_seconds)
    if listen.verbosity > logging.INFO:
        server.logger.setLevel(logging.ERROR)

    def serve(line: socket.socket, load_library: Any, work_path: Any) -> None:
        end_with_thread(parent)
        gate.close()  # so that others' connections end when they are closed
        line.settimeout(None)
        if line.family != socket.AF_UNIX:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                line.setsockopt(socket.IPPROTO_TCP, option, value)
        _leave_with(line, listen.alone_seconds)
        register(board_functions(listen.uploads, listen.upload_bytes))
        inner_loop(line, load_library, work_path)

    server._serve_loop = serve
    base.connect_with_retry = _reach
    port = 0 if listen.socket else listening.getsockname()[1]
    thread = threading.Thread(
        target=server._listen_loop, args=(gate, port, listen.key, listen.tracker, None, None)
    )
    thread.start()
    return thread


def _reach(tracker: Address) -> socket.socket:
    """Connect to the tracker, as soon as it is there."""
    told = False
    while True:
        try:
            return socket.create_connection(tracker)
        except OSError as err:
            if not told:
                _LOG.warning(
                    "the tracker %s is not there (%s); trying until it is", written(tracker), err
                )
            told = True
            sleep(_RETRY_SECONDS)


def _leave_with(line: socket.socket, seconds: float) -> None:
    """End a session whose client is gone, also while a kernel hangs."""

    def watch() -> None:
        poll = select.poll()
        poll.register(line.fileno(), select.POLLRDHUP)
        poll.poll()
        sleep(seconds)
        _LOG.warning("a session went on without its client, and is ended")
        os._exit(0)  # not a crash: the server goes on

    threading.Thread(target=watch, daemon=True).start()
