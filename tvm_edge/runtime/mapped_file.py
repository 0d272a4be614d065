"""A file mapped read-only: the operating system drops its pages, and reads them again.

What lies in such pages is in nobody's budget of memory: they are clean. Two things are left to
whoever computes with them. A page that is not there is read when a kernel touches it, and the
kernel waits; :meth:`MappedFile.read_ahead` asks for pages beforehand. And a page behind the end of
a file that somebody has cut is SIGBUS; :meth:`MappedFile.check` sees it before a kernel does.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any, BinaryIO

import numpy as np

from tvm_edge.errors import ArtifactError

__all__ = ["MappedFile", "mapped_file"]

# What the kernel reads for one request is bounded: by 128 KiB where nobody changed the setting.
_REQUEST = 128 << 10
# Pages between two that are looked at to see whether the file is cached.
_STRETCH = 2 << 20

_lock = threading.Lock()
_files: weakref.WeakValueDictionary[int, MappedFile] = weakref.WeakValueDictionary()


class MappedFile(mmap.mmap):
    """The whole of a file, for reading; unmapped when nothing refers to its memory any more.

    Parameters
    ----------
    file : binary file
        May be closed, and removed from its folder, afterwards.
    name : str
        For messages.
    """

    address: int
    """Where the first byte is."""

    name: str
    _file: int

    def __new__(cls, file: BinaryIO, name: str) -> MappedFile:
        self = super().__new__(cls, file.fileno(), 0, access=mmap.ACCESS_READ)
        self.name = name
        self.address = np.frombuffer(self, np.uint8).ctypes.data
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        with _lock:
            _files[self.address] = self
        return self

    def check(self) -> None:
        """Refuse a file that has become shorter: its last pages cannot be read any more.

        Raises
        ------
        ArtifactError
        """
        size = self.size()  # of the file, now
        if size < len(self):
            raise ArtifactError(
                f"{self.name!r} was cut from {len(self)} to {size} bytes while it was in use; "
                "export it again, and load it anew"
            )

    def read_ahead(self, address: int, nbytes: int) -> None:
        """Have pages read that are not in memory; returns before they are there."""
        first, last = self._pages(address, nbytes)
        for start in range(first, last, _STRETCH):
            end = min(start + _STRETCH, last)
            if self._is_cached(start) and self._is_cached(end - 1):
                continue
            for place in range(start, end, _REQUEST):
                wanted = min(_REQUEST, end - place)
                os.posix_fadvise(self._file, place, wanted, os.POSIX_FADV_WILLNEED)

    def read_into(self, into: np.ndarray, address: int) -> None:
        """Copy bytes from the file, whatever is mapped.

        Parameters
        ----------
        into : np.ndarray
            Bytes.
        address : int
            Where they are mapped.

        Raises
        ------
        ArtifactError
            The file is shorter by now, or cannot be read.
        """
        view, place = into.data, address - self.address
        while view:
            try:
                count = os.preadv(self._file, [view], place)
            except OSError as err:
                raise ArtifactError(
                    f"cannot read {self.name!r}: {err.strerror}; copy it to another disk"
                ) from err
            if not count:
                self.check()
                raise ArtifactError(f"{self.name!r} ends before its weights; export it again")
            view, place = view[count:], place + count

    def drop(self, address: int, nbytes: int) -> None:
        """Take pages out of this process's memory; whoever reads them again gets them again.

        Only pages that hold nothing else.
        """
        first, last = address - self.address, address - self.address + nbytes
        first = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        last = last // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _pages(self, address: int, nbytes: int) -> tuple[int, int]:
        """The pages that hold some bytes, as places in the file."""
        first = (address - self.address) // mmap.PAGESIZE * mmap.PAGESIZE
        return first, min(address - self.address + nbytes, len(self))

    def _is_cached(self, place: int) -> bool:
        try:
            return os.preadv(self._file, [bytearray(1)], place, os.RWF_NOWAIT) == 1
        except OSError:  # it would have to wait, or the file system cannot say
            return False


def mapped_file(address: int) -> MappedFile | None:
    """The file that is mapped at an address, if one of ours is."""
    with _lock:
        files: list[Any] = list(_files.values())
    return next((f for f in files if f.address <= address < f.address + len(f)), None)
