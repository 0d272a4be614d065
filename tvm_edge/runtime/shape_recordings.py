"""Launches of a model with open dimensions, recorded for each of the shapes that it runs often.

A shape is recorded when it is run for the second time: recording costs several runs, and most
shapes of some models come only once. Every recording has a virtual machine of its own, so that
dropping the machine drops all that the driver and TVM keep for it. They take turns, so all of them
are in the same memory, as large as the largest needs it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import tvm
from tvm.runtime.vm import VirtualMachine

from tvm_edge.interrupts import hold_interrupts
from tvm_edge.runtime.entry import Main, by_shape, entry, part_sizes
from tvm_edge.runtime.seen_shapes import clear_pools

__all__ = ["ShapeRecordings", "making_way"]

_LOG = logging.getLogger("tvm_edge.runtime")

_MOST = 32
"""Recordings kept, those that ran last. A page of text has some dozen widths."""

_MOST_NOTED = 1024
"""Shapes remembered that are not recorded."""

_AGAIN = 8
"""Runs of a shape that was dropped for others before it is recorded again."""

_SPARE = 4
"""Memory is taken for tensors larger by one part in so many: larger shapes drop all recordings."""

Shapes = tuple[tuple[int, ...], ...]
Result = TypeVar("Result")


@dataclass
class _Recording:
    """An entry that has run for one shape; ``None``: the driver would not record it."""

    main: Main | None = None


@dataclass(eq=False)
class ShapeRecordings:
    """The recordings of one entry on one machine, for one run at a time.

    Attributes
    ----------
    make : callable
        Makes a virtual machine and returns its entry that takes memory before the weights.
    sizes : callable
        From the inputs to the bytes of each part of the memory.
    device : tvm.runtime.Device
        Where that memory is.
    """

    make: Callable[[], Main]
    sizes: Callable[..., Sequence[int]]
    device: tvm.runtime.Device
    _recordings: OrderedDict[Shapes, _Recording] = field(default_factory=OrderedDict)
    _waits: OrderedDict[Shapes, int] = field(default_factory=OrderedDict)
    _parts: list[tvm.runtime.Tensor] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        with _ALL_LOCK:
            _ALL.add(self)

    @classmethod
    def of(
        cls, make: Callable[[], VirtualMachine], function: str, device: tvm.runtime.Device
    ) -> ShapeRecordings:
        """Return the recordings of an entry by its name, on machines that `make` makes."""
        sizes = make()[part_sizes(function)]
        return cls(lambda: entry(make(), by_shape(function)), sizes, device)

    def run(
        self, inputs: Sequence[tvm.runtime.Tensor], weights: object, plain: Main
    ) -> list[tvm.runtime.Tensor]:
        """Run the entry, which `plain` launches kernel by kernel."""
        with self._lock:
            return self._run(inputs, weights, plain)

    def _run(
        self, inputs: Sequence[tvm.runtime.Tensor], weights: object, plain: Main
    ) -> list[tvm.runtime.Tensor]:
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        recording = self._recordings.get(shapes)
        if recording is None and self._is_due(shapes):
            return self._record(shapes, inputs, weights, plain)
        if recording is None or recording.main is None:
            return plain(*inputs, weights)
        self._recordings.move_to_end(shapes)
        return recording.main(*inputs, *self._parts, weights)

    @property
    def recorded(self) -> tuple[Shapes, ...]:
        """Shapes whose runs replay a recording."""
        return tuple(s for s, recording in self._recordings.items() if recording.main is not None)

    def clear(self) -> bool:
        """Drop all recordings and their memory; whether there were any."""
        had = bool(self._parts) or bool(self._recordings)
        for shapes in self._recordings:
            self._wait(shapes, 0)
        self._recordings.clear()
        self._parts.clear()
        return had

    def _is_due(self, shapes: Shapes) -> bool:
        """Note a run of a shape that is not recorded; whether to record it."""
        waits = self._waits.pop(shapes, 1)
        if not waits:
            return True
        # Without elements there is nothing to record.
        if all(length for shape in shapes for length in shape):
            self._wait(shapes, waits - 1)
        return False

    def _wait(self, shapes: Shapes, runs: int) -> None:
        """Remember after how many runs to record a shape."""
        self._waits[shapes] = runs
        if len(self._waits) > _MOST_NOTED:
            self._waits.popitem(last=False)

    def _record(
        self, shapes: Shapes, inputs: Sequence[tvm.runtime.Tensor], weights: object, plain: Main
    ) -> list[tvm.runtime.Tensor]:
        while len(self._recordings) >= _MOST:
            dropped, _ = self._recordings.popitem(last=False)
            self._wait(dropped, _AGAIN)
        recording = _Recording()
        try:
            self._reserve(self.sizes(*inputs))
            main = self.make()
            results = main(*inputs, *self._parts, weights)
            recording.main = main
        except (MemoryError, RuntimeError) as err:
            # What plain launches complain of as well was no failure of the recording.
            self.clear()
            results = plain(*inputs, weights)
            _LOG.info("runs of the shapes %s are not recorded: %s", shapes, err)
        self._recordings[shapes] = recording
        return results

    def _reserve(self, sizes: Sequence[int]) -> None:
        """Have parts of at least these sizes; where one is too small, all recordings go."""
        had = [int(part.shape[0]) for part in self._parts] or [0] * len(sizes)
        if self._parts and all(old >= size for old, size in zip(had, sizes, strict=True)):
            return
        self.clear()
        wanted = [
            old if old >= size else size + size // _SPARE
            for old, size in zip(had, sizes, strict=True)
        ]
        try:
            self._parts = [self._memory(size) for size in wanted]
        except (MemoryError, RuntimeError):
            self._parts = [self._memory(size) for size in sizes]

    def _memory(self, size: int) -> tvm.runtime.Tensor:
        return tvm.runtime.empty((size,), "uint8", self.device)


_ALL: weakref.WeakSet[ShapeRecordings] = weakref.WeakSet()
_ALL_LOCK = threading.Lock()


def making_way(run: Callable[[], Result]) -> Result:
    """Run something, a second time without recordings where a device has no memory left.

    Those of all models that do not run just now are dropped.
    """
    try:
        return run()
    except (MemoryError, RuntimeError) as err:
        if not _ran_out(err) or not _drop_all():
            raise
    clear_pools()
    return run()


def _drop_all() -> bool:
    """Drop the recordings of all models that do not run; whether there were any."""
    with _ALL_LOCK:
        known = list(_ALL)
    dropped = False
    with hold_interrupts():  # which could come before what gives the lock back
        for recordings in known:
            if recordings._lock.acquire(blocking=False):
                try:
                    dropped |= recordings.clear()
                finally:
                    recordings._lock.release()
    return dropped


def _ran_out(err: Exception) -> bool:
    """Return whether an error of a device's driver says that there is no such memory."""
    return isinstance(err, MemoryError) or "out of memory" in str(err)
