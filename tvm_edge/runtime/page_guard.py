"""Reads of a mapped file's pages that somebody has cut away find zeros instead of SIGBUS.

Kernels read weights where they are mapped, in threads of TVM's or of a driver's; what they raise
there nobody could catch. The library of the OpenCL runtime holds the signal's handler, as Python
runs its own only between two of its instructions.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

from tvm_edge.opencl import library_path

__all__ = ["PageGuard"]


class PageGuard:
    """Watches over mapped pages until it is released.

    Parameters
    ----------
    address : int
        Where the first page begins.
    nbytes : int
    """

    def __init__(self, address: int, nbytes: int) -> None:
        library = _library()
        # Kernels may read to the end of the last page, whatever the file has of it.
        pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._handle = library.TvmEdgeGuardPages(address, pages) if library else None

    @property
    def lost(self) -> bool:
        """Return whether something was read that the file lost; it stays zeros from then on."""
        library = _library()
        return bool(self._handle and library and library.TvmEdgePagesLost(self._handle))

    def release(self) -> None:
        """To be called before the pages are unmapped."""
        library = _library()
        if self._handle and library:
            library.TvmEdgeReleasePages(self._handle)
        self._handle = None


@cache
def _library() -> ctypes.CDLL | None:
    """The functions; None where the library was not built, of which TVM warns at its import."""
    try:
        library = ctypes.CDLL(str(library_path()))
    except FileNotFoundError:
        return None
    library.TvmEdgeGuardPages.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.TvmEdgeGuardPages.restype = ctypes.c_void_p
    library.TvmEdgePagesLost.argtypes = (ctypes.c_void_p,)
    library.TvmEdgeReleasePages.argtypes = (ctypes.c_void_p,)
    return library
