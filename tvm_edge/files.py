"""Files that appear whole or not at all, and temporary ones that a killed process cannot leave.

A temporary file or folder is named after the process that made it: its process id, when it started,
and the boot and process namespace in which both mean something. Whoever makes the next one removes
those of processes that are gone.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, BinaryIO

from tvm_edge.errors import InputError, TvmEdgeError, one_line

if TYPE_CHECKING:
    import numpy as np

__all__ = ["own_name", "read_npz", "remove_leftovers", "temporary_folder", "whole_file", "writing"]

_BEGIN = "tvm-edge-"
_OTHER_BOOT_SECONDS = 24 * 3600.0  # another machine may share the folder
_swept: set[tuple[int, str]] = set()


def own_name(what: str) -> str:
    """Return a new name for something that nobody needs when this process is gone."""
    return (
        f"{_BEGIN}{what}-{_boot()}-{_namespace()}-{os.getpid()}-{_start_of(os.getpid())}-"
        + (uuid.uuid4().hex[:8])
    )


@contextmanager
def temporary_folder(what: str, beside: Path | None = None) -> Iterator[Path]:
    """Make a folder for as long as the block runs.

    Parameters
    ----------
    what : str
        A word for its name.
    beside : Path, optional
        Where, by a hidden name; default among temporary files.

    Raises
    ------
    OSError
        It cannot be made.
    """
    root = beside or Path(tempfile.gettempdir())
    if (os.getpid(), str(root)) not in _swept:
        _swept.add((os.getpid(), str(root)))
        remove_leftovers(root, hidden=beside is not None)
    folder = root / ("." * (beside is not None) + own_name(what))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def whole_file(path: Path, *, streams: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends, unless it raises.

    Parameters
    ----------
    path : Path
        A link is followed.
    streams : bool
        Whether `path` may be a pipe or a terminal, and is written directly then.

    Raises
    ------
    OSError
        It cannot be written, or is neither absent nor a regular file; what was there stays.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(mode := path.stat().st_mode):
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(0, "it is a directory", str(path))
            if not streams:
                raise OSError(0, "it is no regular file", str(path))
            with path.open("wb") as stream:
                yield stream
            return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    remove_leftovers(target.parent, hidden=True)
    temporary = target.with_name(f".{own_name('part')}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writing(
    path: Path,
    what: str = "",
    *,
    error: type[TvmEdgeError] = InputError,
    advice: str = "choose another path",
) -> Iterator[None]:
    """Turn a failure to write `path` into an error of ours.

    Parameters
    ----------
    path : Path
    what : str
        The thing that is written, as ``"the report to"``.
    error : type
    advice : str
        The next thing to type.

    Raises
    ------
    TvmEdgeError
        Of the kind `error`.
    """
    try:
        yield
    except (OSError, ValueError) as err:
        if isinstance(err, ValueError) and "\0" not in str(path):  # that open refuses by ValueError
            raise
        reason = (err.strerror if isinstance(err, OSError) else None) or str(err)
        message = f"cannot write {what}{' ' * bool(what)}{str(path)!r}: {reason}; {advice}"
        if error is InputError:
            raise InputError(message, name="path", got=str(path)) from err
        raise error(message) from err


def read_npz(path: Path, what: str, *, name: str, advice: str) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file.

    Parameters
    ----------
    path : Path
    what : str
        What the arrays are, as ``"inputs"``.
    name : str
        The argument that has the path.
    advice : str
        The next thing to type.

    Raises
    ------
    InputError
    """
    import numpy as np

    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # which NumPy would take for a pickle
                raise ValueError("it is no .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {each: archive[each] for each in archive.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as err:
        reason = (err.strerror if isinstance(err, OSError) else None) or one_line(err)
        raise InputError(
            f"cannot read {what} from {str(path)!r}: {reason}; {advice}",
            name=name,
            expected="an .npz file",
            got=str(path),
        ) from err


def remove_leftovers(folder: Path, *, hidden: bool = False) -> None:
    """Remove what this user's dead processes left in a folder; what cannot be is left.

    Parameters
    ----------
    folder : Path
    hidden : bool
        Whether to look for names that begin with a dot.
    """
    begin = "." * hidden + _BEGIN
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(begin) and _is_left(entry):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        path.unlink()


def _is_left(entry: os.DirEntry[str]) -> bool:
    try:
        boot, namespace, process, start, _ = entry.name.split("-")[-5:]
        status = entry.stat(follow_symlinks=False)
        if status.st_uid != os.geteuid():
            return False
        if boot != _boot():
            return time() - status.st_mtime > _OTHER_BOOT_SECONDS
        return namespace == _namespace() and start != _start_of(int(process))
    except (OSError, ValueError):  # not a name of ours, or gone by now
        return False


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0"


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _start_of(process: int) -> str:
    """Return when a process started, in ticks since the boot; empty if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # After the name, which may hold anything: state, parent, ..., the 20th is the start.
    state, *fields = text.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
