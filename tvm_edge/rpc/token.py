"""Shared secret of a server and its clients, and the proof of it before TVM's protocol is spoken.

The server sends a greeting with a random number, the client one of its own with an HMAC of both by
the token, and the server another HMAC: each knows then that the other one has the token, and nobody
who listened can answer for them. What follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat

from tvm_edge.errors import InputError

__all__ = [
    "GREETING",
    "NUMBER",
    "PROOF",
    "TOKEN_VARIABLE",
    "chosen_token",
    "client_proof",
    "prove",
    "read_token",
    "server_proof",
]

GREETING = b"tvm-edge token1\n"
NUMBER = 32
"""Bytes of a random number."""

PROOF = 32
"""Bytes of an HMAC."""

TOKEN_VARIABLE = "TVM_EDGE_RPC_TOKEN_FILE"

_SHORTEST, _LONGEST = 16, 4096  # bytes of a token


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Read the secret out of a file that its owner alone may read.

    Raises
    ------
    InputError
        It cannot be read, others may read it, or it is too short to be a secret.
    """

    def refused(why: str, advice: str) -> InputError:
        return InputError(
            f"the token file {str(path)!r} {why}; {advice}", name="token_file", got=str(path)
        )

    make = f"make one: (umask 077; openssl rand -hex 32 > {path})"
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            status = os.fstat(number)
            content = file.read(_LONGEST).strip() if stat.S_ISREG(status.st_mode) else b""
    except OSError as err:
        raise refused(f"cannot be read ({err.strerror})", make) from err
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o077:
        raise refused("is readable by others", f"run: chmod 600 {path}, as its owner")
    if len(content) < _SHORTEST:
        raise refused(f"has less than {_SHORTEST} characters", make)
    return content


def chosen_token(path: str | os.PathLike[str] | None) -> bytes | None:
    """Return the token of a file, else of the one that ``TVM_EDGE_RPC_TOKEN_FILE`` names.

    Raises
    ------
    InputError
        As of :func:`read_token`.
    """
    named = path or os.environ.get(TOKEN_VARIABLE)
    return read_token(named) if named else None


def client_proof(token: bytes, servers: bytes, clients: bytes) -> bytes:
    """Return what the client sends after its own number."""
    return hmac.digest(token, b"client" + servers + clients, "sha256")


def server_proof(token: bytes, servers: bytes, clients: bytes) -> bytes:
    """Return what the server answers with."""
    return hmac.digest(token, b"server" + clients + servers, "sha256")


def prove(line: socket.socket, token: bytes) -> None:
    """Show a server the token, and have it show that it has it, too.

    Raises
    ------
    ConnectionError
        It does not ask for one, refuses this one, or has another one.
    """
    greeting = _received(line, len(GREETING) + NUMBER)
    if not greeting.startswith(GREETING):
        raise ConnectionError("it does not ask for a token, and is not who it should be")
    servers, clients = greeting[len(GREETING) :], secrets.token_bytes(NUMBER)
    line.sendall(clients + client_proof(token, servers, clients))
    proof = _received(line, PROOF)
    if not hmac.compare_digest(proof, server_proof(token, servers, clients)):
        raise ConnectionError("it has another token, and is not who it should be")


def _received(line: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        piece = line.recv(count - len(content))
        if not piece:
            raise ConnectionError("it ended the connection: it has another token, or none")
        content += piece
    return content
