"""Files that clients send to a board: stored once by their digest, within a bound."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.rpc.message import BoardFunction

__all__ = ["Uploads", "uploads_folder"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LIMIT = 1 << 30  # bytes in all


def uploads_folder() -> Path:
    """Return the folder in which a board keeps uploads."""
    return platformdirs.user_cache_path("tvm-edge", appauthor=False) / "rpc"


class Uploads:
    """Files by the SHA-256 of their content, the ones used last kept.

    Parameters
    ----------
    folder : path
        Made when the first file comes.
    limit : int
        Bytes that all may take.
    """

    def __init__(self, folder: Path, limit: int = _LIMIT) -> None:
        self._folder, self._limit = folder, limit

    def functions(self) -> dict[str, BoardFunction]:
        """Return the functions that clients may call."""
        return {"stored": self._stored, "store": self._store}

    def path(self, digest: str) -> Path:
        """Return the path of a file.

        Raises
        ------
        InputError
            It is not there.
        """
        # Nothing but digests: a name with a slash would reach other files.
        path = self._folder / digest
        if not _DIGEST.fullmatch(digest) or not path.is_file():
            raise InputError(f"there is no file {digest!r}; upload it first", name="file")
        return path

    def _stored(self, _arrays: Mapping[str, np.ndarray], *, digest: str) -> dict[str, Any]:
        try:
            os.utime(self.path(digest))
        except InputError:
            return {"stored": False}
        return {"stored": True}

    def _store(
        self, arrays: Mapping[str, np.ndarray], *, digest: str, offset: int, last: bool
    ) -> dict[str, Any]:
        """Take a piece; the pieces of a file come in order."""
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"{digest!r} is not a SHA-256 in hexadecimal", name="digest")
        part = self._folder / f"{digest}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(arrays["content"].nbytes, part)
            with part.open("ab" if offset else "wb") as file:
                file.write(arrays["content"].data)
            if last:
                self._check(part, digest)
                part.replace(self._folder / digest)
        except OSError as err:
            with suppress(OSError):
                part.unlink()
            raise ArtifactError(
                f"cannot store a file in {str(self._folder)!r}: {err.strerror}; make space there, "
                "or set XDG_CACHE_HOME for tvm-edge rpc-server"
            ) from err
        return {}

    @staticmethod
    def _check(part: Path, digest: str) -> None:
        found = hashlib.sha256()
        with part.open("rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
        if found.hexdigest() != digest:
            part.unlink()
            raise ArtifactError("a file was altered on its way to the board; upload it again")

    def _make_room(self, nbytes: int, keep: Path) -> None:
        """Remove files used longest ago. Artifacts in use are mapped: they stay until unused."""
        there = []
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:  # another session made room
                continue
            there.append((status.st_mtime, status.st_size, path))
        size = nbytes + sum(entry[1] for entry in there)
        for _, taken, path in sorted(there):
            if size <= self._limit:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                size -= taken
