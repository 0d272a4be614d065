"""The code of a model: its source, and whether this machine can load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tvm

from tvm_edge.errors import ArtifactError, DeviceUnavailableError
from tvm_edge.host import host_features, machine
from tvm_edge.native import native_function
from tvm_edge.report import Launches
from tvm_edge.runtime.artifact import Artifact

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
    """The library of an artifact.

    Parameters
    ----------
    artifact : Artifact
    smaller : bool
        The one in smaller work-groups.
    of_smaller : Launches, optional
        Its launches.
    """

    def __init__(
        self, artifact: Artifact, of_smaller: Launches | None = None, *, smaller: bool = False
    ) -> None:
        self._artifact = artifact
        self._of_smaller, self._is_smaller = of_smaller, smaller

    @property
    def launches(self) -> Launches | None:
        return self._of_smaller if self._is_smaller else None

    @property
    def has_smaller(self) -> bool:
        return self._artifact.has_smaller and not self._is_smaller

    def smaller(self) -> Library:
        return LoadedLibrary(self._artifact, self._of_smaller, smaller=True)

    def module(self) -> tvm.runtime.Module:
        return self._artifact.module(self._is_smaller)

    def link(self, path: Path) -> None:
        path.write_bytes(self._artifact.code(self._is_smaller))


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
        The library cannot be linked here.
    """
    return native_function("runtime.load_code")(what, content)
