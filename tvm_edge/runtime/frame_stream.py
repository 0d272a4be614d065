"""Frames on their way through a model, several at a time.

Very deep CNNs (Rallapalli et al. 2016, §3 "CPU offload with pipelining"): while one device works on
a frame, another works on the frame before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["FrameStream", "Step"]

Pools = dict[str, ThreadPoolExecutor]

_END = object()  # of the source


def _nothing() -> None: ...


@dataclass(frozen=True)
class Step:
    """One of the steps that each frame takes, one after the other.

    Attributes
    ----------
    device : str
        Steps of one device share a thread.
    run : callable
        Takes what the step before returned, the first what a frame is prepared to.
    start : callable
        What the thread does before the first frame.
    """

    device: str
    run: Callable[[Any], Any]
    start: Callable[[], None] = _nothing


class FrameStream(Iterator[dict[str, Any]]):
    """Outputs of a model for one frame after the other; made by ``model.stream(frames, depth)``.

    ``next`` first takes frames, until `depth` are on their way, and then waits for the oldest: its
    outputs are returned, or what was wrong with it is raised. Either way the frames after it are
    not concerned, and ``next`` goes on with them. What the source of frames raises comes in its
    turn as well. The source is asked in the thread that calls ``next``, and never for more than
    `depth` frames whose outputs were not taken.

    Threads, one for each device, end with the last frame, with :meth:`close`, at the end of a
    ``with`` block, when the stream is dropped, and at the interpreter's exit. For one thread at a
    time.

    Parameters
    ----------
    frames : iterable
    depth : int
    prepare : callable
        Takes a frame and the number of a slot below `depth`, which no other frame on its way has;
        returns what the first step takes. What the frame is made of is the source's again then.
    steps : sequence of Step
    check : callable
        Raises if the calling process cannot run the steps.

    Raises
    ------
    InputError
        `frames` cannot be iterated over, or `depth` is not a positive number.
    """

    def __init__(
        self,
        frames: Iterable[Any],
        depth: int,
        prepare: Callable[[Any, int], Any],
        steps: Sequence[Step],
        check: Callable[[], None] = _nothing,
    ) -> None:
        self._pools: Pools = {}
        self._flight: deque[Future[dict[str, Any]]] = deque()
        self._taken = 0
        self._depth = _checked_depth(depth)
        self._source: Iterator[Any] | None = _iterator(frames)
        self._prepare = prepare
        self._steps = tuple(steps)
        self._check = check
        check()
        started: list[Future[None]] = []
        for step in self._steps:
            if step.device not in self._pools:
                pool = ThreadPoolExecutor(1, thread_name_prefix=f"tvm-edge-stream-{step.device}")
                self._pools[step.device] = pool
                started.append(pool.submit(step.start))
        for each in started:
            each.result()

    @property
    def stages(self) -> tuple[str, ...]:
        """The kinds of device that a frame comes by, in order."""
        return tuple(step.device for step in self._steps)

    def __next__(self) -> dict[str, Any]:
        self._check()
        self._fill()
        if not self._flight:
            self.close()
            raise StopIteration
        future = self._flight[0]
        try:
            error = future.exception()  # Ctrl-C leaves the frame where it is
        except CancelledError:  # closed by another thread
            raise StopIteration from None
        self._flight.popleft()
        if error is not None:
            raise error
        return future.result()

    def _fill(self) -> None:
        while self._source is not None and len(self._flight) < self._depth:
            future: Future[dict[str, Any]] = Future()
            try:
                frame = next(self._source, _END)
                if frame is _END:
                    self._source = None
                    return
                prepared = self._prepare(frame, self._taken % self._depth)
            except Exception as error:  # anybody's: it is the caller's at this frame's place
                future.set_exception(error)
            else:
                first = self._pools[self._steps[0].device]
                first.submit(_advance, self._steps, 0, self._pools, prepared, future)
            self._taken += 1
            self._flight.append(future)

    def close(self) -> None:
        """Forget frames whose outputs were not taken, and end the threads.

        Returns when they ended: the steps that are running are waited for.
        """
        self._stop()
        for pool in self._pools.values():
            pool.shutdown(wait=True)

    def _stop(self) -> None:
        self._source = None
        for future in self._flight:
            future.cancel()
        self._flight.clear()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> FrameStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not waiting: the collector may run in one of the threads.
        self._stop()


def _advance(
    steps: Sequence[Step], number: int, pools: Pools, state: Any, future: Future[dict[str, Any]]
) -> None:
    """Take a frame's next step, and send it to the thread of the one after.

    Without the stream, which may be dropped meanwhile.
    """
    if future.cancelled():
        return
    try:
        state = steps[number].run(state)
    except BaseException as error:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
        return
    if number + 1 < len(steps):
        try:
            pools[steps[number + 1].device].submit(
                _advance, steps, number + 1, pools, state, future
            )
        except RuntimeError:  # the stream is closed, or the interpreter exits
            future.cancel()
    elif future.set_running_or_notify_cancel():
        future.set_result(state)


def _checked_depth(depth: Any) -> int:
    if not isinstance(depth, Integral) or isinstance(depth, bool) or depth < 1:
        raise InputError(
            f"depth is {depth!r}, and must be how many frames may be on their way: a positive "
            "number, of at least 2 for devices to work at the same time",
            name="depth",
            expected=">= 1",
            got=repr(depth),
        )
    return int(depth)


def _iterator(frames: Any) -> Iterator[Any]:
    try:
        if isinstance(frames, Mapping):  # one frame, of which one could ask the names
            raise TypeError
        return iter(frames)
    except TypeError as err:
        raise InputError(
            f"frames is a {type(frames).__name__}, and must be a list of frames, or anything else "
            "that can be iterated over: each frame is a dict from name to array",
            name="frames",
            expected="an iterable of dicts",
            got=type(frames).__name__,
        ) from err
