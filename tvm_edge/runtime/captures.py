"""Runs that record a CUDA graph, and whatever would be in their way.

While TVM captures launches, CUDA refuses what any other thread of the process sends to the default
stream, and that breaks the capture as well (``cudaErrorStreamCaptureImplicit``). So a run that
records has the GPU's driver for itself; all others share it.

When that is, TVM alone knows: it records a region when a run first comes to it, which for a region
in a branch may be any run, and again for other shapes. It then calls the region's function instead
of replaying what it recorded. So that function begins with a call of :data:`RECORDING`, which the
compiler writes there (:mod:`tvm_edge.relay_passes.announce_recordings`); what is replayed calls
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tvm_ffi

__all__ = ["CAPTURES", "RECORDING", "Captures"]

# TVM's pass for CUDA graphs takes no call of a vm.builtin into what it records.
RECORDING = "vm.builtin.tvm_edge.recording"
"""``() -> None``: the run that calls this is about to record."""


class Captures:
    """A lock that many share, and that one of them may have alone from some point on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing: set[object] = set()
        self._alone: list[object] = []  # the first of them works when nobody shares
        self._own = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work with the GPU, which waits for whoever is alone or waits to be.

        A thread that has the lock may take it again: that changes nothing.
        """
        if getattr(self._own, "turn", None) is not None:
            yield
            return
        turn = object()
        # Ctrl-C may come anywhere in here: what is not given back would stop all that follow.
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._alone)
                self._sharing.add(turn)
            self._own.turn = turn
            yield
        finally:
            self._own.turn = None
            with self._changed:
                self._sharing.discard(turn)
                self._alone[:] = [other for other in self._alone if other is not turn]
                self._changed.notify_all()

    def stay_alone(self) -> None:
        """Let nobody else work with the GPU until the thread gives back what it shares.

        While it waits for that it shares nothing, so that of two who want it one gets it: another
        may work in between. Nothing happens where the thread does not share the lock.
        """
        turn = getattr(self._own, "turn", None)
        with self._changed:
            if turn not in self._sharing:
                return
            self._sharing.discard(turn)
            self._alone.append(turn)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._alone[0] is turn and not self._sharing)


CAPTURES = Captures()
"""Of this process."""


@tvm_ffi.register_global_func(RECORDING)
def _recording() -> None:
    CAPTURES.stay_alone()
