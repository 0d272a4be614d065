"""A stack for TVM's passes, which call themselves for what is nested in what they are given.

The main thread has 8 MiB on most systems. A detector with an image pyramid needs more, and a stack
that is full ends the process.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["on_deep_stack"]

T = TypeVar("T")

# Address space: what is not used costs nothing.
_BYTES = 512 << 20

_LOCK = threading.Lock()


def on_deep_stack(run: Callable[[], T]) -> T:
    """Call `run` on a thread of its own with a large stack; return what it returns, or raise.

    Context variables are those of the caller.

    Raises
    ------
    MemoryError
        There is none for the stack.
    """
    context = contextvars.copy_context()
    results: list[T] = []
    problems: list[BaseException] = []

    def body() -> None:
        try:
            results.append(context.run(run))
        except BaseException as err:  # whatever it is, it is the caller's
            problems.append(err)

    thread = threading.Thread(target=body, name="tvm_edge compiler", daemon=True)
    with _LOCK:  # the size is the process's
        before = threading.stack_size(_BYTES)
        try:
            thread.start()
        except RuntimeError as err:
            raise MemoryError(
                f"no memory for a stack of {_BYTES >> 20} MiB ({err}); raise the limit on address "
                "space (ulimit -v)"
            ) from err
        finally:
            threading.stack_size(before)
    thread.join()
    if problems:
        raise problems[0]
    return results[0]
