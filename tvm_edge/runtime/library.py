"""Where the code of a model comes from: a compilation, or an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import tvm

from tvm_edge.runtime.session import load_library

__all__ = ["Library", "LoadedLibrary"]


class Library(Protocol):
    """Where the code of a model comes from."""

    @property
    def has_smaller(self) -> bool:
        """Whether there is the same with smaller work-groups, for drivers that allow no more."""
        ...

    def smaller(self) -> Library:
        """That; it may have to be built first."""
        ...

    def module(self) -> tvm.runtime.Module:
        """The code, ready to run on this machine."""
        ...

    def link(self, path: Path) -> None:
        """Write the code as a shared library."""
        ...


class LoadedLibrary:
    """The library of an artifact."""

    def __init__(self, what: str, content: bytes, smaller: bytes = b"") -> None:
        self._what = what
        self._content = content
        self._smaller = smaller

    @property
    def has_smaller(self) -> bool:
        return bool(self._smaller)

    def smaller(self) -> Library:
        return LoadedLibrary(self._what, self._smaller)

    def module(self) -> tvm.runtime.Module:
        return load_library(self._what, self._content)

    def link(self, path: Path) -> None:
        path.write_bytes(self._content)
