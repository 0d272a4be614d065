"""Trackers and servers of their own, and what stands between them."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.runtime.support import child_environment, until
from tvm_edge.rpc.agent import Agent, Call, Upload

__all__ = ["Board", "Proxy", "descendants", "free_port", "process", "silent", "tracker"]


# Processes of the tests begin at places of their own.
_PORTS = itertools.count(101 * os.getpid())


def free_port() -> int:
    """Return a port that nobody has, below those that the system gives to connections.

    One of the system's may be the end of another test's connection before a server takes it.
    """
    while True:
        port = 10_240 + next(_PORTS) % 22_000
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def process(*arguments: object, **environment: str | None) -> Iterator[subprocess.Popen[str]]:
    """This Python with arguments; terminated at the end, and its children are gone then."""
    started = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=child_environment(environment),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        children = descendants(started.pid)
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        finally:
            started.kill()
            _, alive = psutil.wait_procs(children, timeout=10)
            for child in alive:
                child.kill()
        assert not alive, "an orphan is left"


def descendants(pid: int) -> list[psutil.Process]:
    """Processes that a process started, and theirs."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@contextmanager
def tracker(port: int) -> Iterator[None]:
    """TVM's, whose own process for it stays behind when it is told to end."""
    command: tuple[object, ...] = ("-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--silent")
    command += ("--port", port, "--port-end", port + 1)
    with process(*command, TVM_USE_RUNTIME_LIB="1") as started:
        until(lambda: _listens(port))
        try:
            yield
        finally:
            for child in descendants(started.pid):
                child.kill()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


IMPATIENT = """
from functools import partial
from tvm_edge.rpc import server
server.Listen = partial(server.Listen, handshake_seconds=1.5, alone_seconds=0.5)
server._WAITS = (0.0,)
"""
"""Boards of tests are near, and started again at once however often they crash."""


class Board:
    """A running ``tvm-edge rpc-server``, which prints what it offers when it serves."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        self.process = started
        self.address = ""

    def offer(self) -> dict[str, Any]:
        """Waits for it."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "}\n":
                found = json.loads("".join(lines))
                self.address = found["address"]
                return found
        raise AssertionError("the server did not start")

    @property
    def listener(self) -> psutil.Process:
        """The process of TVM's server."""
        (found,) = psutil.Process(self.process.pid).children()
        return found

    def session(self) -> psutil.Process:
        """The process of the one session."""
        (found,) = until(lambda: self.listener.children())
        return found

    @classmethod
    @contextmanager
    def serving(cls, folder: Path, *options: object, prelude: str = "") -> Iterator[Board]:
        """One with options of its own; `prelude` is run in the supervising process before."""
        code = f"{prelude}\n{IMPATIENT}\nfrom tvm_edge.cli.main import main; main()"
        arguments = ("rpc-server", "--json", "--port-end", 65536, *options)
        environment = {"XDG_CACHE_HOME": str(folder), "TVM_USE_RUNTIME_LIB": "1"}
        with process("-c", code, *arguments, **environment) as started:
            yield cls(started)


class Proxy:
    """Passes bytes on to a port, until it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lines: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            ours, _ = self._server.accept()
            theirs = socket.create_connection(("127.0.0.1", self._port))
            self._lines = [ours, theirs]
            with selectors.DefaultSelector() as selector:
                selector.register(ours, selectors.EVENT_READ, theirs)
                selector.register(theirs, selectors.EVENT_READ, ours)
                while True:
                    for key, _ in selector.select():
                        content = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        if not content:
                            return
                        key.data.sendall(content)

    def cut(self) -> None:
        for line in (*self._lines, self._server):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield int(server.getsockname()[1])


def endless(agent: Agent, artifact: str | Path) -> Call:
    """A request to run a model for minutes."""
    name = agent.call(Upload(artifact), 30)
    given = {"file": name, "name": "small", "device": None, "num_threads": 1}
    model = agent.call(Call("load", given), 30).values["model"]
    values = {"model": model, "inputs": False, "warmup": 10**8, "repeat": 1}
    return Call("benchmark", values)
