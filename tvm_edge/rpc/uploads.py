"""Files that clients send to a board: stored once by their digest, within a bound."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.files import own_name, remove_leftovers
from tvm_edge.rpc.message import BoardFunction

__all__ = ["LIMIT", "Uploads", "uploads_folder"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
LIMIT = 1 << 30
"""Bytes that all files may take by default."""


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

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._part: Path | None = None  # the one file of this session that is on its way
        self._size = 0

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
            path = self.path(digest)
            # Used now; that it was not written is what models that have it mapped look at.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        except (InputError, FileNotFoundError):
            return {"stored": False}
        return {"stored": True}

    def _store(
        self, arrays: Mapping[str, np.ndarray], *, digest: str, offset: int, last: bool
    ) -> dict[str, Any]:
        """Take a piece; the pieces of a file come in order, and one file after the other."""
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"{digest!r} is not a SHA-256 in hexadecimal", name="digest")
        content = arrays["content"]
        try:
            if not offset:
                self._begin()
            if self._part is None or offset != self._size:
                raise InputError("a piece of a file is missing; upload it again", name="offset")
            self._make_room(content.nbytes)
            with self._part.open("ab") as file:
                file.write(content.data)
            self._size += content.nbytes
            if last:
                self._check(self._part, digest)
                self._part.replace(self._folder / digest)
                self._part = None
        except (OSError, InputError, ArtifactError) as err:
            self._give_up()
            if not isinstance(err, OSError):
                raise
            raise ArtifactError(
                f"cannot store a file in {str(self._folder)!r}: {err.strerror}; make space there, "
                "or set XDG_CACHE_HOME for tvm-edge rpc-server"
            ) from err
        return {}

    def _begin(self) -> None:
        self._give_up()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(self._folder, hidden=True)
        self._part = self._folder / f".{own_name('upload')}"
        self._part.touch(0o600, exist_ok=False)

    def _give_up(self) -> None:
        if self._part is not None:
            with suppress(OSError):
                self._part.unlink()
        self._part, self._size = None, 0

    @staticmethod
    def _check(part: Path, digest: str) -> None:
        found = hashlib.sha256()
        with part.open("rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
        if found.hexdigest() != digest:
            raise ArtifactError("a file was altered on its way to the board; upload it again")

    def _make_room(self, nbytes: int) -> None:
        """Remove files used longest ago. Artifacts in use are mapped: they stay until unused.

        Raises
        ------
        InputError
            What is on its way takes more than there may be.
        """
        there = []
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:  # another session made room
                continue
            used = max(status.st_mtime, status.st_atime)
            there.append((used, status.st_size, path))
        size = nbytes + sum(entry[1] for entry in there)
        for _, taken, path in sorted(there):
            if size <= self._limit:
                return
            if not path.name.startswith("."):  # of a session that is sending it
                path.unlink(missing_ok=True)
                size -= taken
        if size > self._limit:
            raise InputError(
                f"files on their way to the board take more than the {self._limit} bytes that it "
                "allows; send a smaller one, or start tvm-edge rpc-server with a larger "
                "--upload-limit",
                name="file",
                expected=f"<= {self._limit} bytes",
                got=f"{size} bytes",
            )
