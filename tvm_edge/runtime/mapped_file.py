"""A file mapped read-only: the operating system drops its pages, and reads them again.

What lies in such pages is in nobody's budget of memory: they are clean. Two things are left to
whoever computes with them. A page that is not there is read when a kernel touches it, and the
kernel waits; :meth:`MappedFile.read_ahead` asks for pages beforehand. And what somebody writes to
the file changes the pages, and a page after the end of a file that somebody has cut reads as zeros
(:mod:`tvm_edge.runtime.page_guard`); :meth:`MappedFile.check`, before a run and after it, says so.
A file that takes the place of this one in its folder changes nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvm_edge.errors import ArtifactError
from tvm_edge.runtime.page_guard import PageGuard

__all__ = ["MappedFile", "mapped_file"]

# What Linux reads for one request is bounded by a setting of the disk, and this is its default.
_REQUEST = 128 << 10

# MADV_POPULATE_READ, of Linux 5.14, which Python has no name for.
_POPULATE_READ = 22

# Python's own madvise keeps its lock meanwhile.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

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
    since : os.stat_result, optional
        Status of the file before its content was checked; default now.
    """

    address: int
    """Address of the first byte."""

    name: str
    _file: int
    _tells: bool
    _request: int
    _written_ns: int
    _guard: PageGuard | None = None

    def __new__(cls, file: BinaryIO, name: str, since: os.stat_result | None = None) -> MappedFile:
        self = super().__new__(cls, file.fileno(), 0, access=mmap.ACCESS_READ)
        self.name = name
        self.address = np.frombuffer(self, np.uint8).ctypes.data
        self._guard = PageGuard(self.address, len(self))
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        # Of others' files the kernel says that all is in memory.
        status = os.fstat(self._file)
        self._written_ns = (since or status).st_mtime_ns
        self._request = _largest_request(status.st_dev)
        self._tells = os.geteuid() in (0, status.st_uid) or os.access(
            f"/proc/self/fd/{self._file}", os.W_OK
        )
        with _lock:
            _files[self.address] = self
        return self

    def __del__(self) -> None:
        # A callback of weakref's would come when the memory is somebody else's already.
        if self._guard is not None:
            self._guard.release()

    def check(self) -> None:
        """Refuse a file that was written since, is shorter, or was when its last pages were read.

        Raises
        ------
        ArtifactError
        """
        status = os.fstat(self._file)
        if status.st_size < len(self):
            raise ArtifactError(
                f"{self.name!r} was cut from {len(self)} to {status.st_size} bytes while it was in "
                "use; export it again, and load it anew"
            )
        if status.st_mtime_ns != self._written_ns:
            raise ArtifactError(
                f"{self.name!r} was written to while it was in use, and results may be wrong; load "
                "it anew, with copy=True if it is written in place again, or replace the file by "
                "renaming another one"
            )
        if self._guard is not None and self._guard.lost:
            raise ArtifactError(
                f"{self.name!r} was cut while it was in use, and is as long as it was again; "
                "load it anew"
            )

    def is_in_memory(self, address: int, nbytes: int) -> bool:
        """Return whether the system has all of some bytes, and says so.

        For 64 MiB that are mapped into this process it costs 50 µs, and 2 ms for others.
        """
        return self._tells and bool(self._in_memory(*self._pages(address, nbytes)).all())

    def read_ahead(self, address: int, nbytes: int) -> bool:
        """Have pages read that are not in memory, and mapped.

        Returns when they are there; before Linux 5.14, which cannot say when, before they are.
        Asked to read pages that way it reads them one by one, which is slower too (1.1 GB/s
        instead of 1.4 to 1.7).

        Returns
        -------
        bool
            Whether there are such pages. Where the system does not say, for a file that somebody
            else owns, all are asked for, and none is said to be missing.
        """
        first, last = self._pages(address, nbytes)
        missing = np.flatnonzero(~self._in_memory(first, last)) if self._tells else None
        found = missing is not None and len(missing) > 0
        if found and not _madvise(self.address + first, last - first, _POPULATE_READ):
            return True
        pages = self._request // mmap.PAGESIZE
        count = -(-(last - first) // mmap.PAGESIZE)
        wanted = range(-(-count // pages)) if missing is None else np.unique(missing // pages)
        for request in wanted:
            place = first + int(request) * self._request
            os.posix_fadvise(
                self._file, place, min(self._request, last - place), os.POSIX_FADV_WILLNEED
            )
        return found

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

    def _in_memory(self, first: int, last: int) -> np.ndarray:
        """For each page between two places whether the system has it."""
        found = np.empty(-(-(last - first) // mmap.PAGESIZE), np.uint8)
        if _mincore(self.address + first, last - first, found.ctypes.data):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), self.name)
        return (found & 1).astype(bool)


def _largest_request(device: int) -> int:
    """Bytes that the kernel reads at once from a disk, by its number."""
    name = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    try:
        return max(_REQUEST, int(Path(name).read_text()) << 10)
    except (OSError, ValueError):  # no disk, or no /sys
        return _REQUEST


def mapped_file(address: int) -> MappedFile | None:
    """The file that is mapped at an address, if one of ours is."""
    with _lock:
        files: list[Any] = list(_files.values())
    return next((f for f in files if f.address <= address < f.address + len(f)), None)
