"""The process behind `tests.opencl.support.worker`.

It imports TVM once and forks for every worker before OpenCL is used, so that a worker with an
environment of its own costs a tenth of a second, not two. The runtime and the stand-in read their
environment at their first use, which is in the fork.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection, Listener

import pytest  # noqa: F401  imported once, for all workers
import tvm  # noqa: F401

import tvm_edge.opencl  # noqa: F401
from tests.opencl.recorded import recorded_chain


def listen() -> None:
    """Print an address; a worker for each who connects to it; until standard input ends."""
    if os.fork():
        # Ends with the process that started it, however that ends.
        sys.stdin.read()
        os.killpg(0, 9)
    listener = Listener(family="AF_UNIX")
    recorded_chain()  # once, as well: most of the workers run it
    gc.freeze()
    print(listener.address, flush=True)
    os.dup2(2, 1)  # nobody reads the pipe from here on
    while True:
        connection = listener.accept()
        if os.fork():
            connection.close()
        else:
            listener.close()
            supervise(connection)
            os._exit(0)


def supervise(connection: Connection) -> None:
    """Run a worker; send its exit code when it has ended."""
    worker = os.fork()
    if not worker:
        serve(connection)
        # Not os._exit: that a process ends well is part of what is tested.
        sys.exit(0)
    _, status = os.waitpid(worker, 0)
    connection.send(("exit", os.waitstatus_to_exitcode(status)))


def serve(connection: Connection) -> None:
    """Take an environment, then calls."""
    for name, value in connection.recv().items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    while (request := connection.recv()) is not None:
        function, arguments = request
        try:
            reply = ("result", function(*arguments))
        except BaseException as raised:
            reply = ("error", portable(raised))
        connection.send(reply)


def portable(error: BaseException) -> BaseException:
    """`error` with the worker's traceback as a note; an AssertionError if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error.with_traceback(None)))
    except Exception:
        return AssertionError(text)
    if str(copy) != str(error):
        return AssertionError(text)
    copy.__dict__["__notes__"] = [text]
    return copy


if __name__ == "__main__":
    listen()
