"""Built kernels, and the scratch space of theirs, on disk, across compilations and processes.

What is read is executed. An entry is taken only if it is a regular file of this user that nobody
else may write, and if it carries the digest of its content by a random key that only this user can
read. Whatever is wrong with an entry, its folder or the disk costs the entry alone: the kernel is
built again.

The folder is ``$TVM_EDGE_CACHE``, else ``kernels`` in tvm-edge's folder of the platform's cache;
``TVM_EDGE_CACHE=0`` turns the cache off. It holds at most ``$TVM_EDGE_CACHE_SIZE`` MiB (512):
entries that were not used for the longest time make room for a sixteenth of that, and the next do
when a process has written as much.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import tvm
import tvm_ffi

from tvm_edge.errors import ArtifactError, InputError

__all__ = ["CacheState", "KernelCache", "entry_name", "open_cache"]

_LOG = logging.getLogger("tvm_edge.cache")

_FOLDER, _SIZE = "TVM_EDGE_CACHE", "TVM_EDGE_CACHE_SIZE"
_MEBIBYTES = 512
_KEY_FILE = "key"
_KEY_BYTES = 32
_SUFFIX = ".kernel"
_MARK = b"tvm-edge kernel 1\n"
_DIGEST = hashlib.sha256
_LARGEST = 64 << 20
_ABANDONED = 3600.0  # seconds after which a temporary file is of a process that was killed
_ROOM = 16  # part of the limit that is free after a look at all entries, which takes a while

_written: dict[Path, int] = {}
"""Bytes that went to folders since this process trimmed them; a first trim is still to come."""


@dataclass(frozen=True)
class CacheState:
    """Content of a cache.

    Attributes
    ----------
    folder : str
        Empty if the cache is off.
    entries, nbytes, limit : int
        Entries, one or two for each kernel; their bytes on disk, and those that they may take.
    """

    folder: str
    entries: int
    nbytes: int
    limit: int


class KernelCache:
    """A folder of built kernels by the digests of what they were built from.

    Several processes and threads may use one folder: entries appear whole, by renaming.

    Parameters
    ----------
    folder : Path
        Made if it is missing.
    limit : int
        Bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._key: bytes | None = None
        self._usable: bool | None = None

    def get(self, name: str) -> bytes | None:
        """Return the content of an entry, ``None`` if there is none that may be used.

        Parameters
        ----------
        name : str
            Hexadecimal digest.
        """
        if not self._open():
            return None
        path = self._path(name)
        try:
            entry = _read_own(path)
        except FileNotFoundError:
            return None
        except OSError as err:
            _LOG.info("the cached kernel %s is not used: %s", path, err)
            return None
        mac, content = entry[len(_MARK) :][: _DIGEST().digest_size], entry[self._head() :]
        if not entry.startswith(_MARK) or not hmac.compare_digest(mac, self._mac(name, content)):
            _LOG.info("the cached kernel %s is damaged or of somebody else; built again", path)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)  # used just now
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry; a full disk or a folder that cannot be written keeps none."""
        if not self._open():
            return
        temporary = self.folder / f".{uuid.uuid4().hex}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(_MARK + self._mac(name, content) + content)
            temporary.replace(self._path(name))
            if self.folder in _written:
                _written[self.folder] += self._head() + len(content)
        except OSError as err:
            _LOG.info("a built kernel cannot be kept in %s: %s", self.folder, err)
            with suppress(OSError):
                temporary.unlink()

    def make_room(self) -> None:
        """Trim, if this process has not done so yet or has written much since."""
        if _written.get(self.folder, self.limit) >= self.limit // _ROOM:
            self.trim()

    def trim(self) -> None:
        """Remove the entries that were not used for the longest time, to some room below the limit.

        It takes as long as there are entries: :meth:`make_room` does it now and then.
        """
        if not self._open():
            return
        _written[self.folder] = 0
        found = sorted(self._entries(), key=lambda each: each[1].st_mtime_ns)
        excess = sum(info.st_size for _, info in found) - (self.limit - self.limit // _ROOM)
        for path, info in found:
            if excess <= 0:
                break
            with suppress(OSError):
                os.unlink(path)
            excess -= info.st_size
        for path, info in self._entries(".tmp"):
            with suppress(OSError):
                if time.time() - info.st_mtime > _ABANDONED:
                    os.unlink(path)

    def clear(self) -> CacheState:
        """Remove all entries, and the key; return what was there.

        Raises
        ------
        ArtifactError
            The folder cannot be written.
        """
        state = self.state()
        try:
            for path, _ in (*self._entries(), *self._entries(".tmp")):
                Path(path).unlink(missing_ok=True)
            (self.folder / _KEY_FILE).unlink(missing_ok=True)
        except OSError as err:
            raise ArtifactError(
                f"the cache {str(self.folder)!r} cannot be cleared: {err.strerror}; "
                "check whose folder it is, or name another in TVM_EDGE_CACHE"
            ) from err
        self._key = self._usable = None
        return state

    def state(self) -> CacheState:
        """Return what the cache holds."""
        sizes = [info.st_size for _, info in self._entries()]
        return CacheState(str(self.folder), len(sizes), sum(sizes), self.limit)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _entries(self, suffix: str = _SUFFIX) -> Iterator[tuple[str, os.stat_result]]:
        """Files and what is known of them, as text: a Path for each would take most of the time."""
        with suppress(OSError), os.scandir(self.folder) as listed:
            for each in listed:
                if each.name.endswith(suffix) and not each.is_dir(follow_symlinks=False):
                    with suppress(OSError):
                        yield each.path, each.stat(follow_symlinks=False)

    def _head(self) -> int:
        return len(_MARK) + _DIGEST().digest_size

    def _mac(self, name: str, content: bytes) -> bytes:
        assert self._key is not None, "the cache is open"
        return hmac.digest(self._key, name.encode() + b"\n" + content, _DIGEST().name)

    def _open(self) -> bool:
        """Return whether the folder is this user's own and has a key, made now if there is none."""
        if self._usable is None:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                info = self.folder.stat()
                if info.st_uid != os.geteuid() or info.st_mode & 0o022:
                    raise PermissionError("others own the folder, or may write it")
                self._key = self._own_key()
                self._usable = True
            except OSError as err:
                _LOG.info("no built kernels are kept in %s: %s", self.folder, err)
                self._usable = False
        return self._usable

    def _own_key(self) -> bytes:
        path = self.folder / _KEY_FILE
        for _ in range(3):
            try:
                key = _read_own(path, secret=True)
                if len(key) == _KEY_BYTES:
                    return key
                path.unlink()  # damaged: the entries go with it
            except FileNotFoundError:
                pass
            except OSError:  # others can read it, or it is none: what it signed is worth nothing
                path.unlink()
            temporary = self.folder / f".{uuid.uuid4().hex}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(temporary, flags, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(_KEY_BYTES))
                try:
                    os.link(temporary, path)  # not over one that another process has just made
                except FileExistsError:
                    pass
                except OSError:  # a file system without hard links
                    temporary.replace(path)
            finally:
                with suppress(OSError):
                    temporary.unlink()
        raise PermissionError("its key cannot be read")


def open_cache() -> KernelCache | None:
    """Return the cache that the environment names, ``None`` if it is off.

    Raises
    ------
    InputError
        ``TVM_EDGE_CACHE_SIZE`` is no number.
    """
    chosen = os.environ.get(_FOLDER, "")
    if chosen == "0":
        return None
    size = os.environ.get(_SIZE) or str(_MEBIBYTES)
    if not size.isdecimal():
        raise InputError(
            f"{_SIZE} is {size!r}; set it to a number of MiB, or {_FOLDER}=0 for no cache",
            name=_SIZE,
            expected="a number of MiB",
            got=size,
        )
    folder = Path(chosen) if chosen else platformdirs.user_cache_path("tvm-edge") / "kernels"
    return KernelCache(folder.absolute(), int(size) << 20)


def _read_own(path: Path, secret: bool = False) -> bytes:
    """Read a regular file of this user that others may not write, or, of a secret, read.

    Raises
    ------
    OSError
        It is another kind of file, a link, or others may.
    """
    # A pipe would have the opening wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise PermissionError("not a regular file")
        if info.st_uid != os.geteuid() or info.st_mode & (0o077 if secret else 0o022):
            raise PermissionError("it is another user's, or others have rights to it")
        if info.st_size > _LARGEST:
            raise OSError(f"it has {info.st_size} bytes, which no kernel has")
        return file.read()


def entry_name(source: str, *facts: object) -> str:
    """Return the name of an entry by all that its content depends on.

    Parameters
    ----------
    source : str
        File of the module that makes the content.
    *facts
        Of the kernel, as JSON has them. Versions of TVM and the sources of tvm-edge that lower
        kernels are added.
    """
    return hashlib.sha256(json.dumps([_builder(source), *facts]).encode()).hexdigest()


@functools.cache
def _builder(source: str) -> list[str]:
    """Versions of all that makes object code of a scheduled kernel, ours by its sources."""
    from tvm_edge import lowering, schedules

    digest = hashlib.sha256()
    for package in (lowering, schedules):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update(Path(source).read_bytes())
    return [str(tvm.__version__), str(tvm_ffi.__version__), digest.hexdigest()]
