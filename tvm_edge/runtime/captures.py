"""Runs that record a CUDA graph, and whatever would be in their way.

While TVM captures launches, CUDA refuses what any other thread of the process sends to the default
stream, and that breaks the capture as well (``cudaErrorStreamCaptureImplicit``). So a run that
records has the GPU's driver for itself; all others share it.

When that is, TVM alone knows: it records a region when a run first comes to it, which for a region
in a branch may be any run, and again for other shapes. It then calls the region's function instead
of replaying what it recorded. So that function begins with a call of :data:`RECORDING`, which the
compiler writes there (:mod:`tvm_edge.relay_passes.instructions.announce_recordings`); what is
replayed calls nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tvm_ffi

__all__ = ["CAPTURES", "RECORDING", "Captures"]

# TVM's pass for CUDA graphs records no call of a vm.builtin.
RECORDING = "vm.builtin.tvm_edge.recording"
"""``(last) -> None``: the run that calls this is about to record.

`last` says that whatever its entry has to record it will have recorded when it ends.
"""


class Turn:
    """State of a thread that has the lock.

    Attributes
    ----------
    recorded_all : bool
        Nothing is left to record once the run ends as it should.
    """

    def __init__(self) -> None:
        self.recorded_all = False


class Captures:
    """A lock that many share, and that one of them may have alone from some point on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing: set[Turn] = set()
        self._alone: list[Turn] = []  # the first of them works when nobody shares
        self._own = threading.local()

    @contextmanager
    def shared(self) -> Iterator[Turn]:
        """Work with the GPU, which waits for whoever is alone or waits to be.

        A thread that has the lock may take it again: that changes nothing.
        """
        if (own := self._turn()) is not None:
            yield own
            return
        turn = Turn()
        # Ctrl-C may come anywhere in here: what is not given back would stop all that follow.
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._alone)
                self._sharing.add(turn)
            self._own.turn = turn
            yield turn
        finally:
            self._own.turn = None
            with self._changed:
                self._sharing.discard(turn)
                self._alone[:] = [other for other in self._alone if other is not turn]
                self._changed.notify_all()

    def stay_alone(self, last: bool = False) -> None:
        """Let nobody else work with the GPU until the thread gives back what it shares.

        While it waits for that it shares nothing, so that of two who want it one gets it: another
        may work in between. Nothing happens where the thread does not share the lock.
        """
        turn = self._turn()
        if turn is None:
            return
        turn.recorded_all |= last
        with self._changed:
            if turn not in self._sharing:
                return
            self._sharing.discard(turn)
            self._alone.append(turn)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._alone[0] is turn and not self._sharing)

    def _turn(self) -> Turn | None:
        turn: Turn | None = getattr(self._own, "turn", None)
        return turn


CAPTURES = Captures()
"""Lock of this process."""


@tvm_ffi.register_global_func(RECORDING)
def _recording(last: int) -> None:
    CAPTURES.stay_alone(bool(last))
