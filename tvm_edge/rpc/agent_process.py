"""Process that holds a session of TVM's RPC: it may wait for ever, and is killed then.

It serves the other end of its connection, one request at a time, and ends with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tvm_edge.child import connection_to_parent
from tvm_edge.errors import DeviceLost, DeviceUnavailableError, InputError, TvmEdgeError, one_line
from tvm_edge.rpc.address import Address, written
from tvm_edge.rpc.token import TOKEN_VARIABLE, prove

__all__ = ["Call", "Open", "Ready", "Request", "Reserve", "Upload"]

# Begin of the errors of TVM's checks: the source of a condition, which tells a user nothing.
_CHECK = re.compile(r"^Check failed: \(.*\) is false: (?=.)")
_PIECE = 1 << 20  # bytes of a file that travel at once


@dataclass(frozen=True)
class Ready:
    """First answer, before any request."""


@dataclass(frozen=True)
class Reserve:
    """Wait for a board of a key: answered by a :class:`~tvm_edge.rpc.tracker.Grant`."""

    tracker: Address
    key: str
    seconds: float


@dataclass(frozen=True)
class Open:
    """Open a session of a server, answered by :class:`Ready`."""

    server: Address
    match_key: str
    token: bytes | None = field(default=None, repr=False)
    seconds: float = 10.0


@dataclass(frozen=True)
class Upload:
    """Send a file that the board has not got: answered by its name there."""

    path: str | os.PathLike[str]


@dataclass(frozen=True)
class Call:
    """Call a function of the board: answered by a :class:`~tvm_edge.rpc.message.Message`.

    Attributes
    ----------
    function : str
        Without ``tvm_edge.rpc.``.
    values : dict
        Its arguments, JSON-compatible.
    arrays : mapping of str to np.ndarray
    """

    function: str
    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)


Request = Reserve | Open | Upload | Call


def relayed_session(request: Open) -> Any:
    """Open a session on a connection that TVM's client cannot open: by a token, or a Unix socket.

    It then talks to a process that passes its words on. That process has no port which others of
    this machine could use.
    """
    import tvm_ffi
    from tvm import rpc
    from tvm.rpc import base

    host = request.server[0]
    with (
        socket.socket(socket.AF_UNIX)
        if host.startswith("/")
        else socket.create_connection(request.server, request.seconds)
    ) as line:
        if line.family == socket.AF_UNIX:
            line.settimeout(request.seconds)
            line.connect(host)
        else:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if request.token is not None:
            prove(line, request.token)
        key = f"client:{request.match_key}".encode()
        line.sendall(struct.pack("<ii", base.RPC_MAGIC, len(key)) + key)
        (code,) = struct.unpack("<i", base.recvall(line, 4))
        if code != base.RPC_CODE_SUCCESS:
            raise ConnectionError("it does not know the key, or asks for a token")
        (length,) = struct.unpack("<i", base.recvall(line, 4))
        base.recvall(line, length)
        line.settimeout(None)
        line.set_inheritable(True)
        relay = Path(__file__).with_name("relay.py")
        command = (sys.executable, "-I", "-S", str(relay), str(line.fileno()))
        return rpc.RPCSession(tvm_ffi.get_global_func("rpc.CreatePipeClient")(*command))


class _Line:
    """Session of TVM's RPC."""

    def __init__(self) -> None:
        self._session: Any = None
        self._server: Address = ("", 0)
        self._functions: dict[str, Callable[[bytes], Any]] = {}

    def answer(self, request: Any) -> Any:
        if isinstance(request, Reserve):
            from tvm_edge.rpc.tracker import request_board

            return request_board(request.tracker, request.key, request.seconds)
        if isinstance(request, Open):
            self._open(request)
            return Ready()
        if isinstance(request, Upload):
            return self._upload(Path(request.path))
        return self._call(request)

    def _open(self, request: Open) -> None:
        from tvm import rpc

        self._server = request.server
        try:
            if request.token is None and not request.server[0].startswith("/"):
                self._session = rpc.connect(*request.server, request.match_key)
            else:
                self._session = relayed_session(request)
        except Exception as err:  # of TVM's; the class says nothing
            raise DeviceLost(
                f"no session with the server {written(request.server)} ({_reason(err)}); is "
                "tvm-edge rpc-server running there, and not registered with a tracker? Of one "
                "that is, give the tracker's address and the key; of one with a token, name the "
                f"file that has it ({TOKEN_VARIABLE})"
            ) from err
        try:
            self._function("hello")
        except AttributeError as err:
            raise DeviceUnavailableError(
                f"the server {written(request.server)} is TVM's alone and cannot run artifacts; "
                "on the board install tvm-edge and run: tvm-edge rpc-server"
            ) from err

    def _function(self, name: str) -> Callable[[bytes], Any]:
        """Look a function of the board up, once; ``AttributeError`` if it has none such."""
        if name not in self._functions:
            try:
                self._functions[name] = self._session.get_function(f"tvm_edge.rpc.{name}")
            except AttributeError:
                raise
            except Exception as err:
                raise self._gone(err) from err
        return self._functions[name]

    def _gone(self, err: Exception) -> DeviceLost:
        return DeviceLost(
            f"the server {written(self._server)} is gone ({_reason(err)}): its session crashed, or "
            "the connection was cut; connect again"
        )

    def _call(self, request: Call) -> Any:
        from tvm_edge.rpc.message import Message

        sent = Message(request.values, request.arrays).to_bytes()
        try:
            function = self._function(request.function)
        except AttributeError as err:
            raise InputError(f"the board has no function {request.function!r}") from err
        try:
            content = bytes(function(sent))
        # A board's functions do not raise: what does is the line.
        except Exception as err:
            raise self._gone(err) from err
        try:
            return Message.from_bytes(content)
        except ValueError as err:
            raise DeviceLost(
                f"what the server {written(self._server)} answers cannot be read "
                f"({one_line(err)}); connect again"
            ) from err

    def _upload(self, path: Path) -> Any:
        """Send a file; a failed call is the answer."""
        import numpy as np

        try:
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while piece := file.read(_PIECE):
                    digest.update(piece)
                name = digest.hexdigest()
                found = self._call(Call("stored", {"digest": name}))
                if found.values.get("result") == {"stored": True}:
                    return name
                if "failure" in found.values:
                    return found
                size, offset = file.tell(), 0
                file.seek(0)
                while True:
                    content = np.frombuffer(file.read(_PIECE), np.uint8)
                    place = {"digest": name, "offset": offset, "last": offset + _PIECE >= size}
                    done = self._call(Call("store", place, {"content": content}))
                    if "failure" in done.values:
                        return done
                    if place["last"]:
                        return name
                    offset += _PIECE
        except OSError as err:
            raise InputError(
                f"cannot read {str(path)!r}: {err.strerror}; check the path", name=str(path)
            ) from err


def _reason(err: Exception) -> str:
    """Return the line of one of TVM's errors that says something."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    last = _CHECK.sub("", lines[-1]) if lines else type(err).__name__
    return one_line(ValueError(last), 200)


def _leave_with(connection: Connection) -> None:
    """End this process when the other one has, whatever TVM waits for.

    Not by way of the kernel, as :func:`tvm_edge.child.end_with_parent` does: the thread that opened
    the session may end, and the session is another's then.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), 0)  # a connection that is closed is always reported
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serve the connection that the command line names."""
    with connection_to_parent() as connection:
        _leave_with(connection)
        line = _Line()
        connection.send(Ready())
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            try:
                answer = line.answer(request)
            except TvmEdgeError as err:
                answer = err
            connection.send(answer)
