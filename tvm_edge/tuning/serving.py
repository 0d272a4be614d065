"""What a measuring process does with the messages that it is sent, and what it answers.

Whatever happens in it is answered: the parent alone decides what a failure costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tvm_edge.child import connection_to_parent, end_with_parent
from tvm_edge.errors import InvalidLaunch, MissingDependencyError, WrongResult, one_line

__all__ = ["Done", "Failed", "serve", "serve_parent"]


@dataclass(frozen=True)
class Done:
    """Seconds of single runs, one of each round."""

    latencies: tuple[float, ...] = ()


@dataclass(frozen=True)
class Failed:
    """Class of an error, and what it says.

    Attributes
    ----------
    error, message : str
    ran : bool
        Whether its kernels had been launched: they may have written anywhere, and a CUDA context
        in which one failed serves nothing any more.
    """

    error: str
    message: str
    ran: bool = False


def serve(
    connection: Connection,
    answers: Mapping[type, Callable[[Any], Any]],
    orders: Mapping[type, Callable[[Any], None]],
    launched: list[Any],
) -> None:
    """Say that the process is ready, and serve messages one by one until the other end is gone.

    Parameters
    ----------
    connection : Connection
    answers : mapping of type to callable
        By the type of a message what returns the answer. What it raises is answered as
        :class:`Failed`.
    orders : mapping of type to callable
        The same for messages that are not answered.
    launched : list
        What the message at hand has run; emptied before each.
    """
    connection.send(Done())
    while True:
        try:
            ask = connection.recv()
        except EOFError:
            return
        if type(ask) in orders:
            orders[type(ask)](ask)
            continue
        launched.clear()
        try:
            answer = answers[type(ask)](ask)
        except MissingDependencyError as err:
            answer = Failed("MissingDependencyError", str(err))
        except WrongResult as err:
            answer = Failed("WrongResult", str(err), ran=True)
        # Whatever a compiler or driver says of a candidate is that candidate's.
        except Exception as err:
            message = f"{type(err).__name__}: {one_line(err)}"
            answer = Failed(InvalidLaunch.__name__, message, ran=bool(launched))
        connection.send(answer)


def serve_parent(serve_target: Callable[[Connection, Any, Any, int], None]) -> None:
    """Serve the connection that the command line names.

    Parameters
    ----------
    serve_target : callable
        Takes the connection, and from its first message target, host and number of threads.
    """
    # With the parent, however it ends: a kernel that hangs does not see the connection close.
    end_with_parent()
    with connection_to_parent() as connection:
        target, host, num_threads = connection.recv()
        serve_target(connection, target, host, num_threads)
