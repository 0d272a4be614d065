"""The artifact: one file with the library, the weights and a manifest.

It is an uncompressed ZIP archive, so that ``unzip -l model.tvme`` lists it and any tool can check
it, with weights on a page boundary, so that a process maps them instead of reading them::

    manifest.json   versions, target, inputs, outputs, weights, checksums, report
    library.so      host code, and device code inside it
    smaller.so      optional: the same in smaller work-groups, for drivers that allow no more;
                    what it launches is in the manifest
    weights.bin     tensors one after the other, each on 64 bytes
    programs.bin    optional: kernels as the driver of the exporting machine built them

An artifact holds native code: load only files you would also run.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tvm

from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.files import temporary_folder, whole_file, writing
from tvm_edge.interrupts import raise_pending_interrupt
from tvm_edge.native import native_function
from tvm_edge.runtime.dlpack import numpy_dtype, share_array
from tvm_edge.schema import check_types

__all__ = [
    "FORMAT_VERSION",
    "Artifact",
    "artifact_bytes",
    "read_artifact",
    "tensor_dtype",
    "write_artifact",
]

FORMAT_VERSION = 1

_MANIFEST, _LIBRARY, _WEIGHTS = "manifest.json", "library.so", "weights.bin"
_PROGRAMS = "programs.bin"
_SMALLER = "smaller.so"
_TENSOR_ALIGNMENT = 64  # TVM's kAllocAlignment: kernels load whole cache lines
_OWN_PAGES = 1 << 16  # bytes of a tensor whose pages hold nothing else, so that they can be dropped
_CHUNK = 1 << 20

_NUMPY_TYPES = frozenset(np.dtype(code).name for code in "?bhilBHILefd")
_OTHER_TYPES = re.compile(r"bfloat16|float[468]_\w+|u?int[24]")  # of ml_dtypes


class Artifact:
    """An opened artifact whose checksums hold; the file is mapped, and is in C++.

    Parameters
    ----------
    name : str
        For messages.
    functions : tvm.runtime.Module
        It in C++.

    Attributes
    ----------
    name : str
    manifest : dict
    native : tvm.runtime.Module
    """

    def __init__(self, name: str, functions: tvm.runtime.Module) -> None:
        self.name, self.native = name, functions
        self.manifest: dict[str, Any] = json.loads(
            str(functions["manifest"]()), parse_constant=self._refuse_constant
        )

    def _refuse_constant(self, name: str) -> None:
        raise ArtifactError(
            f"the manifest of {self.name!r} is damaged ({name} is no JSON); export it again"
        )

    @property
    def weights(self) -> list[tvm.runtime.Tensor]:
        """Tensors over the mapped file, read-only: the operating system may drop their pages.

        Or over the copy.
        """
        return list(self.native["weights"]())

    @property
    def programs(self) -> bytes:
        """Programs for :func:`tvm_edge.opencl.load_programs`; empty if there are none."""
        return bytes(self.native["programs"]())

    @property
    def has_smaller(self) -> bool:
        """Return whether there is a library with smaller work-groups."""
        return bool(self.native["has_smaller"]())

    def code(self, smaller: bool = False) -> bytes:
        """The shared library, or the one with smaller work-groups."""
        return bytes(self.native["code"](smaller))

    def module(self, smaller: bool = False) -> tvm.runtime.Module:
        """Load that library."""
        return self.native["module"](smaller)

    def check(self) -> None:
        """Refuse a file that was written since.

        Raises
        ------
        ArtifactError
        """
        self.native["check"]()


def write_artifact(
    path: str | os.PathLike[str],
    manifest: dict[str, Any],
    link_library: Callable[[Path], None],
    weights: Sequence[np.ndarray],
    programs: bytes = b"",
    link_smaller: Callable[[Path], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Write an artifact; the file appears whole or not at all.

    Parameters
    ----------
    path : path
        Replaced if it exists.
    manifest : dict
        Without the entries about weights and checksums, which are added here.
    link_library : callable
        Called with a path, writes the shared library there.
    weights : sequence of np.ndarray
    programs : bytes
        Built kernels; left out if empty.
    link_smaller : callable, optional
        Writes the library with smaller work-groups.
    check : callable
        Called before the file is there; what it raises is raised.

    Raises
    ------
    ArtifactError
        The folder is missing or not writable, the disk is full, or `path` is no regular file.
    """
    target = Path(path)
    advice = (
        "choose a folder that exists, is writable and has space, and check the space in the "
        "temporary folder (nothing was left behind)"
    )
    with (
        writing(target, "the artifact", error=ArtifactError, advice=advice),
        temporary_folder("export") as folder,
    ):
        members = _linked(folder, link_library, link_smaller)
        with whole_file(target) as file:
            _write_members(file, manifest, members, weights, programs)
            check()  # of a loaded model: what was written is its file's
    return target


def artifact_bytes(
    manifest: dict[str, Any],
    link_library: Callable[[Path], None],
    weights: Sequence[np.ndarray],
    programs: bytes = b"",
    link_smaller: Callable[[Path], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> bytes:
    """Return what :func:`write_artifact` writes.

    Raises
    ------
    ArtifactError
        The temporary folder is full or not writable.
    """
    content = io.BytesIO()
    try:
        with temporary_folder("export") as folder:
            members = _linked(folder, link_library, link_smaller)
            _write_members(content, manifest, members, weights, programs)
            check()
    except OSError as err:
        raise ArtifactError(
            f"cannot link the library of the artifact: {err.strerror or err}; check the space in "
            "the temporary folder"
        ) from err
    return content.getvalue()


def _linked(
    folder: Path,
    link_library: Callable[[Path], None],
    link_smaller: Callable[[Path], None] | None,
) -> dict[str, Path]:
    members = {_LIBRARY: folder / _LIBRARY}
    link_library(members[_LIBRARY])
    if link_smaller is not None:
        members[_SMALLER] = folder / _SMALLER
        link_smaller(members[_SMALLER])
    return members


def read_artifact(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
    *,
    copy: bool = False,
) -> Artifact:
    """Open an artifact, check every byte of it, and map its weights.

    Parameters
    ----------
    source : path, bytes or binary file
        Of bytes the weights are used where they lie; a file must have a descriptor, which may be
        closed afterwards.
    copy : bool
        Read the weights into memory: nobody who writes to the file later changes them.

    Raises
    ------
    ArtifactError
        The file is absent, not an artifact, truncated, altered, of another format or made with
        another TVM, or somebody writes to it.
    InputError
        `source` is nothing of these.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = _aligned_bytes(source)
        opened = native_function("runtime.open_artifact_memory")(content, copy)
        return Artifact("memory", opened)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if isinstance(path, str) and "\0" in path:
            raise ArtifactError(
                f"cannot read the artifact {path!r}: embedded null byte; check the path"
            )
        opened = native_function("runtime.open_artifact")(os.fsdecode(path), copy)
        return Artifact(os.fsdecode(path), opened)
    try:
        descriptor, name = source.fileno(), str(getattr(source, "name", "file"))
    except (AttributeError, OSError) as err:
        raise InputError(
            f"the artifact is a {type(source).__name__}; pass a path, bytes, or a binary file that "
            "has a descriptor",
            name="path",
            expected="a path, bytes or a file",
            got=type(source).__name__,
        ) from err
    return Artifact(name, native_function("runtime.open_artifact_fd")(descriptor, name, copy))


def _aligned_bytes(content: bytes | bytearray | memoryview) -> tvm.runtime.Tensor:
    """Return content that nobody writes, as a tensor that keeps it alive."""
    view = memoryview(content)
    return share_array(np.frombuffer(view if view.readonly else bytes(view), np.uint8))


def _write_members(
    file: BinaryIO,
    manifest: dict[str, Any],
    libraries: Mapping[str, Path],
    weights: Sequence[np.ndarray],
    programs: bytes,
) -> None:
    table, offset = [], 0
    for array in weights:
        large = array.nbytes >= _OWN_PAGES
        offset = _aligned(offset, mmap.PAGESIZE if large else _TENSOR_ALIGNMENT)
        table.append(
            {
                "offset": offset,
                "nbytes": array.nbytes,
                "shape": list(array.shape),
                "dtype": array.dtype.name,
            }
        )
        offset += array.nbytes

    def weight_bytes() -> Iterator[memoryview | bytes]:
        position = 0
        for entry, array in zip(table, weights, strict=True):
            yield bytes(entry["offset"] - position)
            # As bytes first: bfloat16 is no type of Python's buffers.
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            position = entry["offset"] + entry["nbytes"]

    def library_bytes(library: Path) -> Iterator[bytes]:
        with library.open("rb") as source:
            while chunk := source.read(_CHUNK):
                yield chunk

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        checksums = {
            name: _write_member(archive, name, library_bytes(library))
            for name, library in libraries.items()
        }
        checksums[_WEIGHTS] = _write_member(archive, _WEIGHTS, weight_bytes())
        if programs:
            checksums[_PROGRAMS] = _write_member(archive, _PROGRAMS, iter([programs]))
        whole = {
            "format": "tvm-edge",
            "format_version": FORMAT_VERSION,
            **manifest,
            "weights": table,
            "checksums": checksums,
        }
        _write_member(archive, _MANIFEST, iter([json.dumps(whole).encode()]))


def _write_member(archive: zipfile.ZipFile, name: str, chunks: Iterator[bytes | memoryview]) -> str:
    """Store a member on a page boundary; return the SHA-256 of its content."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    # Fixed header, name, ZIP64 sizes (always asked for), then an extra field of padding whose own
    # header takes four bytes.
    header = 30 + len(name) + 20
    start = archive.start_dir + header
    padding = _aligned(start + 4, mmap.PAGESIZE) - start - 4
    info.extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
    digest = hashlib.sha256()
    with archive.open(info, "w", force_zip64=True) as member:
        for chunk in chunks:
            raise_pending_interrupt()
            digest.update(chunk)
            member.write(chunk)
    return digest.hexdigest()


def tensor_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a tensor's elements.

    Raises
    ------
    ValueError
        Not the name of a type that tensors have: ``object``, ``datetime64``, ``f4``, …
    """
    check_types(name, str, "the type of a tensor")
    if name not in _NUMPY_TYPES and not _OTHER_TYPES.fullmatch(name):
        raise ValueError(f"{name!r} is not the type of a tensor")
    try:
        return numpy_dtype(name)
    except (TypeError, AttributeError) as err:
        raise ValueError(f"{name!r} is not the type of a tensor here") from err


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
