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
        No temporary folder or memory.
    """
    name = "code.o"
    with _in_memory([name]) as (folder, (file,)):
        module.write_to_file(str(folder / name))
        size = os.fstat(file).st_size
        return os.pread(file, size, 0)


@contextmanager
def _in_memory(names: Iterable[str]) -> Iterator[tuple[Path, list[int]]]:
    """Make a folder whose files of these names are in memory; yield their descriptors too."""
    with temporary_folder("link") as folder, ExitStack() as stack:
        files = []
        for name in names:
            files.append(os.memfd_create(name))
            stack.callback(os.close, files[-1])
            (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{files[-1]}")
        yield folder, files


def link_library(executable: tvm.runtime.Executable, path: Path, linker: Linker) -> None:
    """Write code as a shared library.

    Raises
    ------
    ArtifactError
        The linker failed, as it does where the disk is full.
    OSError
        No temporary folder or memory.
    """
    with _in_memory(_object_names(executable.mod)) as (folder, _):
        executable.export_library(str(path), fcompile=linker, workspace_dir=str(folder))


def _object_names(module: tvm.runtime.Module) -> Iterator[str]:
    """Yield the names that TVM may give object files, one for each module of host code."""
    yield "devc.o"
    yield from (f"lib{number}.o" for number in range(_count(module)))


def _count(module: tvm.runtime.Module) -> int:
    return 1 + sum(map(_count, module.imports))
