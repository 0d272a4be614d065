"""Object files of code that TVM generated, written in memory.

LLVM ends the process when a file that it writes cannot grow ("IO failure on output stream"). It
writes into memory here, and the linker, which fails like any program, reads them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tvm

from tvm_edge.files import temporary_folder
from tvm_edge.lowering.linker import Linker

__all__ = ["link_library", "object_code"]


def object_code(module: tvm.runtime.Module) -> bytes:
    """Return a module of LLVM's as an object file.

    Raises
    ------
    OSError
        No memory.
    """
    file = os.memfd_create("code.o")
    try:
        # The name has no suffix to tell the format by.
        module.write_to_file(_path(file), "o")
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


def _path(file: int) -> str:
    """Return a path of a file in memory that other processes can open, too."""
    return f"/proc/{os.getpid()}/fd/{file}"


@contextmanager
def _in_memory(names: Iterable[str]) -> Iterator[Path]:
    """Make a folder whose files of these names are in memory."""
    with temporary_folder("link") as folder, ExitStack() as stack:
        for name in names:
            file = os.memfd_create(name)
            stack.callback(os.close, file)
            (folder / name).symlink_to(_path(file))
        yield folder


def link_library(executable: tvm.runtime.Executable, path: Path, linker: Linker) -> None:
    """Write code as a shared library.

    Raises
    ------
    ArtifactError
        The linker failed, as it does where the disk is full.
    OSError
        No temporary folder or memory.
    """
    with _in_memory(_object_names(executable.mod)) as folder:
        executable.export_library(str(path), fcompile=linker, workspace_dir=str(folder))


def _object_names(module: tvm.runtime.Module) -> Iterator[str]:
    """Yield the names that TVM may give object files, one for each module of host code."""
    yield "devc.o"
    yield from (f"lib{number}.o" for number in range(_count(module)))


def _count(module: tvm.runtime.Module) -> int:
    return 1 + sum(map(_count, module.imports))
