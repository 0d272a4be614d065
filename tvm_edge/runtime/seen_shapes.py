"""Memory of shapes that are not run any more, given back.

TVM's pool keeps a block that was freed for the next tensor of just its size. Where pictures have
different sizes, each leaves its blocks there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import tvm_ffi

__all__ = ["MOST", "SeenShapes", "clear_pools"]

MOST = 32
"""Shapes whose blocks are kept. A camera has one or two; a page of text has some dozen widths."""

_clear_pools = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")

# glibc keeps pages between blocks that are in use: shape after shape they would grow.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def clear_pools() -> None:
    """Give all memory back that no run holds: free blocks of all pools, and arenas."""
    _clear_pools()
    tvm_ffi.get_global_func("tvm_edge.release_arenas")()


class SeenShapes:
    """Shapes of inputs that the pool may have blocks of.

    Parameters
    ----------
    most : int
        Shapes whose blocks are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._lock = threading.Lock()

    def note(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Note the shapes of a run; give all free blocks back before there are too many."""
        with self._lock:
            self._shapes.add(tuple(shapes))
            if len(self._shapes) > self._most:
                self._shapes = {tuple(shapes)}
                _clear_pools()
                if _trim is not None:
                    _trim(0)
