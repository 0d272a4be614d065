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
import json
import mmap
import os
import re
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvm_edge.errors import ArtifactError, one_line
from tvm_edge.files import temporary_folder, whole_file
from tvm_edge.interrupts import raise_pending_interrupt
from tvm_edge.runtime.dlpack import numpy_dtype
from tvm_edge.runtime.mapped_file import MappedFile, mapped_file
from tvm_edge.schema import check_types

__all__ = ["FORMAT_VERSION", "Artifact", "read_artifact", "tensor_dtype", "write_artifact"]

FORMAT_VERSION = 1

_MANIFEST, _LIBRARY, _WEIGHTS = "manifest.json", "library.so", "weights.bin"
_PROGRAMS = "programs.bin"
_SMALLER = "smaller.so"
_TENSOR_ALIGNMENT = 64  # TVM's kAllocAlignment: kernels load whole cache lines
_OWN_PAGES = 1 << 16  # bytes of a tensor whose pages hold nothing else, so that they can be dropped
_CHUNK = 1 << 20
_TICK_NS = 20_000_000  # two of the slowest kernels'
_ADVICE = "copy or export it again"

_NUMPY_TYPES = frozenset(np.dtype(code).name for code in "?bhilBHILefd")
_OTHER_TYPES = re.compile(r"bfloat16|float[468]_\w+|u?int[24]")  # of ml_dtypes


@dataclass(frozen=True)
class Artifact:
    """An opened artifact whose checksums hold.

    Attributes
    ----------
    path : Path
    manifest : dict
    library : bytes
        The shared library.
    weights : tuple[np.ndarray, ...]
        Views of the mapped file, read-only: the operating system may drop their pages. Or of the
        copy.
    programs : bytes
        What :func:`tvm_edge.opencl.load_programs` takes; empty if there are none.
    smaller : bytes
        The shared library with smaller work-groups; empty if there is none.
    mapping : MappedFile or None
        The whole file; ``None`` of one that was copied.
    """

    path: Path
    manifest: dict[str, Any]
    library: bytes
    weights: tuple[np.ndarray, ...]
    programs: bytes
    smaller: bytes
    mapping: MappedFile | None

    def release(self, index: int) -> None:
        """Take the pages of a weight out of this process's memory.

        Whoever reads the weight again gets its pages from the file. A copy stays.
        """
        if self.mapping is not None:
            weight = self.weights[index]
            self.mapping.drop(weight.ctypes.data, weight.nbytes)


def write_artifact(
    path: str | os.PathLike[str],
    manifest: dict[str, Any],
    link_library: Callable[[Path], None],
    weights: Sequence[np.ndarray],
    programs: bytes = b"",
    link_smaller: Callable[[Path], None] | None = None,
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

    Raises
    ------
    ArtifactError
        The folder is missing or not writable, the disk is full, or `path` is no regular file.
    """
    target = Path(path)
    try:
        with temporary_folder("export") as folder:
            library = folder / _LIBRARY
            link_library(library)
            members = {_LIBRARY: library}
            if link_smaller is not None:
                members[_SMALLER] = folder / _SMALLER
                link_smaller(members[_SMALLER])
            with whole_file(target) as file:
                _write_members(file, manifest, members, weights, programs)
                for source in filter(None, (mapped_file(w.ctypes.data) for w in weights)):
                    source.check()  # of a loaded model: what was written is its file's
    except (OSError, ValueError) as err:  # ValueError: a NUL in the path
        raise ArtifactError(
            f"cannot write the artifact {str(target)!r}: {_reason(err)}; choose a folder that "
            "exists, is writable and has space, and check the space in the temporary folder "
            "(nothing was left behind)"
        ) from err
    return target


def read_artifact(path: str | os.PathLike[str], *, copy: bool = False) -> Artifact:
    """Open an artifact, check every byte of it, and map its weights.

    Parameters
    ----------
    path : path
    copy : bool
        Read the weights into memory: nobody who writes to the file later changes them.

    Raises
    ------
    ArtifactError
        The file is absent, not an artifact, truncated, altered, of a newer format, or somebody
        writes to it.
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            return _read(source, file, copy)
    except (OSError, ValueError) as err:  # ValueError: a NUL in the path
        raise ArtifactError(
            f"cannot read the artifact {str(source)!r}: {_reason(err)}; check the path"
        ) from err


def _reason(err: OSError | ValueError) -> str:
    return (err.strerror if isinstance(err, OSError) else None) or str(err)


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


def _read(path: Path, file: BinaryIO, copy: bool) -> Artifact:
    status = _settled(file)
    size = status.st_size
    if size == 0:
        raise ArtifactError(f"the artifact {str(path)!r} is empty; {_ADVICE}")
    # zipfile reports damage by whichever of these the broken field happens to cause.
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            optional = [name for name in (_PROGRAMS, _SMALLER) if name in members]
            present = [_MANIFEST, _LIBRARY, _WEIGHTS, *optional]
            spans = {name: _span(file, members[name], size) for name in present}
            manifest = json.loads(archive.read(_MANIFEST), parse_constant=_refuse_constant)
            _check_format(path, manifest)

            def checked(name: str) -> Iterator[bytes]:
                """Yield a member, of which whoever took all of it has what was checked."""
                if name not in spans:
                    return
                digest = hashlib.sha256()
                for chunk in _chunks(file, *spans[name]):
                    raise_pending_interrupt()
                    digest.update(chunk)
                    yield chunk
                if digest.hexdigest() != manifest["checksums"][name]:
                    raise ArtifactError(
                        f"the artifact {str(path)!r} was altered: the checksum of {name} does "
                        f"not match; {_ADVICE}"
                    )

            library, programs, smaller = (
                b"".join(checked(name)) for name in (_LIBRARY, _PROGRAMS, _SMALLER)
            )
            start, length = spans[_WEIGHTS]
            memory = mmap.mmap(-1, max(length, 1)) if copy else None  # begins on a page
            for chunk in checked(_WEIGHTS):
                if memory is not None:
                    memory.write(chunk)
            whole = MappedFile(file, str(path), status) if memory is None else None
            view = memoryview(memory or whole or b"")
            span = (start if memory is None else 0, length)
            weights = tuple(_weight(view, span, entry) for entry in manifest["weights"])
    except (
        zipfile.BadZipFile,
        struct.error,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        EOFError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
    ) as err:
        raise ArtifactError(
            f"{str(path)!r} is not a tvm-edge artifact, or is truncated or damaged "
            f"({type(err).__name__}: {one_line(err)}); {_ADVICE}"
        ) from err
    if whole is not None:
        whole.check()
    return Artifact(path, manifest, library, weights, programs, smaller, whole)


def _settled(file: BinaryIO) -> os.stat_result:
    """Status of a file whose time of writing any later write changes.

    File systems keep it by the kernel's tick: of two writes in one, only the first changes it.
    """
    while time.time_ns() - (status := os.fstat(file.fileno())).st_mtime_ns in range(_TICK_NS):
        time.sleep(_TICK_NS * 1e-9)
    return status


def _check_format(path: Path, manifest: dict[str, Any]) -> None:
    if manifest.get("format") != "tvm-edge":
        raise ArtifactError(f"{str(path)!r} is a ZIP file but no tvm-edge artifact; {_ADVICE}")
    check_types(manifest.get("versions", {}), dict[str, str], "versions")
    version = manifest["format_version"]
    check_types(version, int, "format_version")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"the artifact {str(path)!r} has format {version}, and this tvm-edge reads "
            f"{FORMAT_VERSION}; export it again with this version, or install the version "
            f"{manifest.get('versions', {}).get('tvm_edge', 'that wrote it')}"
        )


def _span(file: BinaryIO, info: zipfile.ZipInfo, size: int) -> tuple[int, int]:
    """Offset and length of a stored member's content."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise zipfile.BadZipFile(f"{info.filename} is compressed")
    file.seek(info.header_offset)
    header = file.read(30)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    start = info.header_offset + 30 + name_length + extra_length
    if start + info.file_size > size:
        raise zipfile.BadZipFile(f"{info.filename} ends behind the end of the file")
    return start, info.file_size


def _chunks(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    """Bytes of a file, read: what is mapped would lie in this process's memory from then on."""
    file.seek(start)
    while length:
        chunk = file.read(min(length, _CHUNK))
        if not chunk:
            raise EOFError("the file has become shorter")
        length -= len(chunk)
        yield chunk


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _weight(view: memoryview, span: tuple[int, int], entry: dict[str, Any]) -> np.ndarray:
    check_types(entry["shape"], list[int], "the shape of a weight")
    start, length = span
    offset, nbytes = entry["offset"], entry["nbytes"]
    check_types((offset, nbytes), tuple[int, int], "the place of a weight")
    if offset < 0 or nbytes < 0 or offset + nbytes > length or min(entry["shape"], default=0) < 0:
        raise ValueError("a weight lies outside weights.bin")
    content = np.frombuffer(view[start + offset : start + offset + nbytes], dtype=np.uint8)
    return content.view(tensor_dtype(entry["dtype"])).reshape(entry["shape"])


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
