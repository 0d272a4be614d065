"""The code of a model: its source, and whether this machine can load it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import tvm
import tvm_ffi

from tvm_edge.errors import ArtifactError, DeviceUnavailableError
from tvm_edge.files import temporary_folder
from tvm_edge.host import host_features, machine
from tvm_edge.native import kernels_on_pool
from tvm_edge.report import Launches

__all__ = ["Library", "LoadedLibrary", "check_host", "load_library"]


class Library(Protocol):
    """Source of the code of a model."""

    @property
    def launches(self) -> Launches | None:
        """Launches of the code, if they are not those of the model's report."""
        ...

    @property
    def has_smaller(self) -> bool:
        """Return whether there is a library in smaller work-groups, for drivers with low limits."""
        ...

    def smaller(self) -> Library:
        """Return the library in smaller work-groups; it may have to be built first."""
        ...

    def module(self) -> tvm.runtime.Module:
        """The code, ready to run on this machine."""
        ...

    def link(self, path: Path) -> None:
        """Write the code as a shared library."""
        ...


class LoadedLibrary:
    """The library of an artifact."""

    launches: Launches | None = None

    def __init__(
        self, what: str, content: bytes, smaller: bytes = b"", of_smaller: Launches | None = None
    ) -> None:
        self._what = what
        self._content = content
        self._smaller = smaller
        self._of_smaller = of_smaller

    @property
    def has_smaller(self) -> bool:
        return bool(self._smaller)

    def smaller(self) -> Library:
        made = LoadedLibrary(self._what, self._smaller)
        made.launches = self._of_smaller
        return made

    def module(self) -> tvm.runtime.Module:
        return load_library(self._what, self._content)

    def link(self, path: Path) -> None:
        path.write_bytes(self._content)


def check_host(what: str, architecture: str, features: Sequence[str]) -> None:
    """Refuse code that this CPU cannot execute; running it would end in SIGILL.

    Parameters
    ----------
    what : str
        The artifact or model, for the message.
    architecture : str
    features : sequence of str
        In LLVM's names.

    Raises
    ------
    ArtifactError
        Code for another architecture.
    DeviceUnavailableError
        An instruction set is missing here.
    """
    if architecture != machine():
        raise ArtifactError(
            f"{what} is compiled for {architecture}, and this machine is {machine()}; "
            f"run it there, or compile it with target='llvm' here"
        )
    here = host_features()
    if here is None:
        return
    missing = sorted(set(features) - here)
    if missing:
        raise DeviceUnavailableError(
            f"{what} is compiled for a CPU with {', '.join(missing)}, which this CPU lacks; "
            "compile it with target='llvm' on this machine or name its CPU: "
            "{'kind': 'llvm', 'mcpu': ...}"
        )


def load_library(what: str, content: bytes) -> tvm.runtime.Module:
    """Load a shared library that lies in memory; `what` it belongs to is for messages.

    Raises
    ------
    ArtifactError
        The temporary folder is full or not writable, or the library cannot be linked here.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(temporary_folder("load")) / "library.so"
            path.write_bytes(content)
        except OSError as err:
            raise ArtifactError(
                f"cannot unpack the library of {what} into {tempfile.gettempdir()!r}: "
                f"{err.strerror}; set TMPDIR to a folder with space"
            ) from err
        try:
            # Stays mapped after the file is gone; TVM's own load_module would keep every module
            # for the life of the process.
            with kernels_on_pool():
                return tvm_ffi.load_module(path, keep_module_alive=False)
        except RuntimeError as err:
            reason = str(err).splitlines()[0][:200]
            raise ArtifactError(
                f"the dynamic linker refuses the library of {what}: {reason}; "
                "set TMPDIR to a folder mounted without noexec, or export the model again"
            ) from err
