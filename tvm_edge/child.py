"""Child process at the other end of a connection, with a deadline for its answers.

Code that may hang or crash runs in such a process: kernels that are being tuned, TVM's RPC client.
Whoever waits for it waits no longer than the deadline, and kills it then.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

__all__ = [
    "Child",
    "ChildEnded",
    "connection_to_parent",
    "end_with_parent",
    "end_with_thread",
    "run",
]

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 5.0


class ChildEnded(Exception):
    """Raised when the process ended instead of answering.

    Attributes
    ----------
    status : int or None
        Its exit status, negative for a signal; ``None`` of one that hangs at its end.
    """

    def __init__(self, status: int | None) -> None:
        super().__init__(f"its process ended with status {status}")
        self.status = status


class Child:
    """Process that runs ``main()`` of a module, and the deadline of its answer.

    Parameters
    ----------
    module : str
        Its ``main`` begins with :func:`connection_to_parent`.
    environment : mapping, optional
        Variables beside this process's own.

    Attributes
    ----------
    process : subprocess.Popen
    connection : multiprocessing.connection.Connection
        For :func:`multiprocessing.connection.wait` beside others.
    deadline : float
        For the answer to the last request, as :func:`time.monotonic` counts.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._environment = environment or {}
        self.start()

    def start(self) -> None:
        """Start the process, or another in the place of one that was stopped."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from tvm_edge.child import run; run({self._module!r})",
                    str(os.getpid()),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C is the parent's
            )
        self.connection = Connection(ours.detach())
        self.deadline = monotonic()

    def ask(self, message: Any, seconds: float) -> None:
        """Send something that is answered within so many seconds; does not wait."""
        self.deadline = monotonic() + seconds
        with suppress(BrokenPipeError, ConnectionResetError):  # seen at the answer
            self.connection.send(message)

    def receive(self) -> Any:
        """Return the process's message, or wait for it.

        Raises
        ------
        ChildEnded
        """
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):  # one may hang at its end
                self.process.wait(_END_SECONDS)
            raise ChildEnded(self.process.returncode) from None

    def stop(self) -> None:
        """End the process and those that it started, whatever they do."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()


def run(module: str) -> None:
    """Run ``main()`` of a module, in the child.

    Imports make objects that all stay: Python looks for garbage among them again and again, an
    eighth of the processor time of the start.
    """
    gc.disable()
    main = importlib.import_module(module).main
    gc.freeze()
    gc.enable()
    main()


def connection_to_parent() -> Connection:
    """Return the other end of :attr:`Child.connection`, in the child."""
    return Connection(int(sys.argv[2]))


def end_with_parent() -> None:
    """End this process with the thread that started it, however that ends.

    For a child of a thread that lives as long as the child is wanted. The kernel does it: also to
    a process that is stopped, and to one that hangs and sees no connection close.
    """
    end_with_thread(int(sys.argv[1]))


def end_with_thread(parent: int) -> None:
    """End this process with the one of this process id, which forked it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()
