"""Linking of code that TVM generated, with object files in memory.

LLVM ends the process when a file that it writes cannot grow ("IO failure on output stream"). It
writes into memory here, and the linker, which fails like any program, reads them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import tvm

from tvm_edge.files import temporary_folder
from tvm_edge.lowering.linker import Linker

__all__ = ["link_library"]


def link_library(executable: tvm.runtime.Executable, path: Path, linker: Linker) -> None:
    """Write code as a shared library.

    Raises
    ------
    ArtifactError
        The linker failed, as it does where the disk is full.
    OSError
        No temporary folder or memory.
    """
    with temporary_folder("link") as folder, ExitStack() as stack:
        for name in _object_names(executable.mod):
            file = os.memfd_create(name)
            stack.callback(os.close, file)
            (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{file}")
        executable.export_library(str(path), fcompile=linker, workspace_dir=str(folder))


def _object_names(module: tvm.runtime.Module) -> Iterator[str]:
    """Yield the names that TVM may give object files, one for each module of host code."""
    yield "devc.o"
    yield from (f"lib{number}.o" for number in range(_count(module)))


def _count(module: tvm.runtime.Module) -> int:
    return 1 + sum(map(_count, module.imports))
