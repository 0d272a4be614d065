"""Gate before TVM's RPC server: connections that have said who they are, and no others.

TVM's loop takes one connection at a time and waits for its first words, so that fifty clients that
say nothing keep all others out. Here a thread of its own waits for the first words of all, up to a
deadline and a number, and TVM's loop takes those that have said them.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import select
import selectors
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from tvm_edge.rpc.token import GREETING, NUMBER, PROOF, client_proof, server_proof

__all__ = ["Gate"]

_LOG = logging.getLogger(__name__)

_LONGEST_KEY = 1024
_HEAD = 8  # bytes of TVM's magic number and the length of the key
_MOST = 32  # connections that have not said who they are, and those that have and wait


class _Greeted(socket.socket):
    """Connection whose first words were read already, and are read again."""

    said = b""

    def recv(self, count: int, flags: int = 0) -> bytes:
        if self.said:
            piece, self.said = self.said[:count], self.said[count:]
            return piece
        return super().recv(count, flags)


@dataclass(eq=False)
class _Newcomer:
    """Connection that has not said who it is yet."""

    line: socket.socket
    name: str
    deadline: float
    number: bytes = b""  # of the challenge
    proves: bool = False
    heard: bytearray = field(default_factory=bytearray)


class Gate:
    """Stand-in for the listening socket of TVM's loop.

    Parameters
    ----------
    listening : socket
        TCP or Unix; of a Unix socket only this user's processes and root's are let in.
    magic : int
        First word of TVM's clients.
    token : bytes or None
        Secret that clients must prove to have.
    seconds : float
        For all first words together.
    """

    def __init__(
        self, listening: socket.socket, magic: int, token: bytes | None, seconds: float
    ) -> None:
        self._listening, self._token, self._seconds = listening, token, seconds
        self._magic = struct.pack("<i", magic)
        self._newcomers: deque[_Newcomer] = deque()
        self._ready: deque[tuple[_Greeted, str]] = deque()
        self._told, self._tells = os.pipe()
        listening.setblocking(False)
        threading.Thread(target=self._run, name="tvm-edge gate", daemon=True).start()

    # ------------------------------------------------------------------ for TVM's loop

    def fileno(self) -> int:
        """Readable when :meth:`accept` has a connection."""
        return self._told

    def accept(self) -> tuple[socket.socket, str]:
        """Return the next connection, and wait for one.

        Raises
        ------
        ConnectionAbortedError
            Its client is gone by now.
        """
        os.read(self._told, 1)
        line, name = self._ready.popleft()
        if _is_gone(line):
            line.close()
            raise ConnectionAbortedError(f"{name} is gone")
        return line, name

    def close(self) -> None:
        """Close every connection in a child process that serves one of them."""
        for line in (
            self._listening,
            *(each.line for each in self._newcomers),
            *(line for line, _ in self._ready),
        ):
            line.close()
        os.close(self._told)
        os.close(self._tells)

    # ------------------------------------------------------------------ its thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # nobody could connect any more: the server is started again
            _LOG.exception("the gate of the server failed")
            os._exit(1)

    def _serve(self) -> None:
        # Not epoll, which a child process would share.
        with selectors.PollSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            while True:
                wait = min((each.deadline for each in self._newcomers), default=None)
                timeout = None if wait is None else max(wait - monotonic(), 0)
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        self._greet(selector)
                    elif key.data in self._newcomers:
                        self._listen_to(key.data, selector)
                while self._newcomers and self._newcomers[0].deadline <= monotonic():
                    self._drop(self._newcomers[0], selector, "it said nothing")

    def _greet(self, selector: selectors.BaseSelector) -> None:
        try:
            line, address = self._listening.accept()
        except OSError as err:  # gone again, or no more descriptors
            _LOG.debug("a connection was not accepted: %s", err)
            return
        name = str(address) if address else "a process of this board"
        newcomer = _Newcomer(line, name, monotonic() + self._seconds)
        line.setblocking(False)
        if len(self._newcomers) >= _MOST:
            self._drop(self._newcomers[0], selector, "too many wait to say who they are")
        self._newcomers.append(newcomer)
        selector.register(line, selectors.EVENT_READ, newcomer)
        if line.family == socket.AF_UNIX and _user_of(line) not in (0, os.geteuid()):
            self._drop(newcomer, selector, "it is another user's")
        elif self._token is not None:
            newcomer.proves, newcomer.number = True, secrets.token_bytes(NUMBER)
            self._send(newcomer, GREETING + newcomer.number, selector)

    def _send(self, newcomer: _Newcomer, content: bytes, selector: selectors.BaseSelector) -> None:
        try:
            line = newcomer.line
            sent = line.send(content)  # nothing was sent before: it has room
        except OSError as err:
            self._drop(newcomer, selector, str(err))
        else:
            if sent < len(content):
                self._drop(newcomer, selector, "it takes nothing")

    def _listen_to(self, newcomer: _Newcomer, selector: selectors.BaseSelector) -> None:
        """Take what it says, and no byte more than belongs to its first words."""
        try:
            piece = newcomer.line.recv(_wanted(newcomer))
        except BlockingIOError:
            return
        except OSError as err:
            self._drop(newcomer, selector, str(err))
            return
        newcomer.heard += piece
        if not piece:
            self._drop(newcomer, selector, "it went away")
        elif newcomer.proves:
            if not _wanted(newcomer):
                self._check_proof(newcomer, selector)
        elif bytes(newcomer.heard[:4]) != self._magic[: len(newcomer.heard)]:
            self._drop(newcomer, selector, "it is no client of TVM's")
        elif _wanted(newcomer) < 0:
            self._drop(newcomer, selector, "its key has no sensible length")
        elif not _wanted(newcomer):
            self._admit(newcomer, selector)

    def _check_proof(self, newcomer: _Newcomer, selector: selectors.BaseSelector) -> None:
        assert self._token is not None
        number, proof = bytes(newcomer.heard[:NUMBER]), bytes(newcomer.heard[NUMBER:])
        expected = client_proof(self._token, newcomer.number, number)
        if not hmac.compare_digest(proof, expected):
            self._drop(newcomer, selector, "it has another token, or none", logging.WARNING)
            return
        newcomer.proves = False
        newcomer.heard.clear()
        self._send(newcomer, server_proof(self._token, newcomer.number, number), selector)

    def _admit(self, newcomer: _Newcomer, selector: selectors.BaseSelector) -> None:
        try:
            words = bytes(newcomer.heard[_HEAD:]).decode().split()
        except UnicodeDecodeError:
            words = []
        # TVM's loop ends with a key that is empty, or no text.
        if len(self._ready) >= _MOST or not words:
            self._drop(newcomer, selector, "too many wait" if words else "it has no key")
            return
        selector.unregister(newcomer.line)
        self._newcomers.remove(newcomer)
        line = newcomer.line
        greeted = _Greeted(line.family, line.type, line.proto, fileno=line.detach())
        greeted.said = bytes(newcomer.heard)
        greeted.settimeout(self._seconds)
        self._ready.append((greeted, newcomer.name))
        os.write(self._tells, b"\0")

    def _drop(
        self,
        newcomer: _Newcomer,
        selector: selectors.BaseSelector,
        why: str,
        level: int = logging.INFO,
    ) -> None:
        if newcomer not in self._newcomers:
            return
        _LOG.log(level, "the connection of %s is ended: %s", newcomer.name, why)
        self._newcomers.remove(newcomer)
        selector.unregister(newcomer.line)
        newcomer.line.close()


def _wanted(newcomer: _Newcomer) -> int:
    """Bytes that are missing of its next words; negative if it asks for too many."""
    heard = newcomer.heard
    if newcomer.proves:
        return NUMBER + PROOF - len(heard)
    if len(heard) < _HEAD:
        return _HEAD - len(heard)
    (length,) = struct.unpack("<i", heard[4:_HEAD])
    return _HEAD + length - len(heard) if 0 < length <= _LONGEST_KEY else -1


def _is_gone(line: socket.socket) -> bool:
    poll = select.poll()
    poll.register(line.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _user_of(line: Any) -> int:
    """User of the process at the other end of a Unix socket."""
    content = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", content)
    return int(user)
