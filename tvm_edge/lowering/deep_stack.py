"""Threads with a stack for TVM's passes, which call themselves for what is nested in what they get.

The main thread has 8 MiB on most systems. A detector with an image pyramid needs more, and a stack
that is full ends the process.
"""

from __future__ import annotations

import contextvars
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["map_on_deep_stacks", "on_deep_stack"]

T = TypeVar("T")
S = TypeVar("S")

# Address space: what is not used costs nothing.
_BYTES = 512 << 20

_BEGIN = 4 << 20  # bytes that a thread needs before it can fail

_LOCK = threading.Lock()


def on_deep_stack(run: Callable[[], T]) -> T:
    """Call `run` on a thread of its own with a large stack; return what it returns, or raise.

    Context variables are those of the caller.

    Raises
    ------
    MemoryError
        There is none for the stack.
    """
    (result,) = map_on_deep_stacks(lambda _: run(), (None,), 1)
    return result


def map_on_deep_stacks(call: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Call `call` for each item on threads with large stacks; yield results as they are ready.

    The first error is raised as soon as the calls that had begun are done; no others begin.

    Parameters
    ----------
    call : callable
        Its context variables are those of the caller.
    items : iterable
        Begun in this order.
    threads : int
    """
    waiting = list(items)[::-1]
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    count = len(waiting)

    def body() -> None:
        while True:
            try:
                item = waiting.pop()  # of a list: one thread gets it
            except IndexError:
                return
            try:
                done.put((call(item), None))
            except BaseException as err:  # whatever it is, it is the caller's
                waiting.clear()
                done.put((None, err))

    started = []
    for _ in range(min(threads, count)):
        try:
            started.append(_start(body))
        except MemoryError:
            if not started:
                raise
            break  # those that there are do it all
    try:
        for _ in range(count):
            result, problem = done.get()
            if problem is not None:
                _join(started)
                raise problem
            yield result  # type: ignore[misc]
    finally:
        waiting.clear()  # Ctrl-C waits for no call
    _join(started)


def _start(body: Callable[[], None]) -> threading.Thread:
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(body,), name="tvm_edge compiler", daemon=True
    )
    with _LOCK:  # the size is the process's
        _check_memory()
        before = threading.stack_size(_BYTES)
        try:
            thread.start()
        except RuntimeError as err:
            raise _no_memory(err) from err
        finally:
            threading.stack_size(before)
    return thread


def _check_memory() -> None:
    """Look for room for a stack and what a thread begins with.

    A thread that has its stack, and no memory to begin, is waited for without end by Python.
    """
    try:
        mmap.mmap(-1, _BYTES + _BEGIN).close()
    except (OSError, ValueError) as err:
        raise _no_memory(err) from err


def _no_memory(err: Exception) -> MemoryError:
    return MemoryError(
        f"no memory for a stack of {_BYTES >> 20} MiB ({err}); raise the limit on address space "
        "(ulimit -v)"
    )


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
