"""``load``: from an exported model to one that runs, here or on a board."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol, runtime_checkable

from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.runtime.artifact import read_artifact
from tvm_edge.runtime.devices import DEVICES, device_index
from tvm_edge.runtime.info import read_info
from tvm_edge.runtime.library import LoadedLibrary, check_host
from tvm_edge.runtime.model import CompiledModel
from tvm_edge.runtime.out_of_memory import raises_memory_error
from tvm_edge.runtime.threads import resolve_threads

__all__ = ["Board", "load"]


@runtime_checkable
class Board(Protocol):
    """Board as :func:`load` sees it; the layer above has it."""

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        num_threads: int | None = None,
        cpus: Sequence[int] | None = None,
    ) -> Any:
        """Load an artifact there."""


@raises_memory_error
@hold_interrupts()
def load(
    path: str | os.PathLike[str] | bytes | BinaryIO,
    *,
    device: str | None = None,
    num_threads: int | None = None,
    cpus: Sequence[int] | None = None,
    copy: bool = False,
    remote: Board | None = None,
) -> CompiledModel:
    """Load an exported model.

    Needs no compiler and, with ``TVM_USE_RUNTIME_LIB=1`` in the environment, only TVM's runtime
    library. Weights are mapped from the file: while the model is in use, replace it by renaming
    another one; after a write in place every run raises an ArtifactError.

    Parameters
    ----------
    path : path, bytes or binary file
        Bytes are what :meth:`CompiledModel.to_bytes` returns. Of a file that is open for reading
        the whole is loaded, wherever it is read next; it may be closed afterwards.
    device : str, optional
        Device to run on: ``"opencl:1"`` is the second OpenCL device. Default: the first device of
        the kind it was compiled for.
    num_threads : int, optional
        Default: ``TVM_NUM_THREADS``, else all physical cores that the process may use, by its
        affinity and the quota of its control group. More than CPUs are taken as that many.
    cpus : sequence of int, optional
        CPUs that kernels keep to, by Linux's numbers: the big cores of a board. Default: all that
        the process may use.
    copy : bool
        Read the weights into memory of this process, so that the file may be written or removed.
        A board keeps a file of its own, and does not need it.
    remote : tvm_edge.Remote, optional
        A board to run on, from :func:`tvm_edge.connect`; the model is a
        :class:`tvm_edge.rpc.RemoteModel` then, and `path` is a path.

    Raises
    ------
    InputError
        `remote` is not a board, `device` is not the name of a device, `num_threads` is no number
        of threads, or a CPU does not exist or may not be used.
    ArtifactError
        Damaged, or made for another architecture, format or TVM version.
    DeviceUnavailableError
        The code needs a CPU feature or device that this machine lacks.
    """
    if remote is not None:
        if not isinstance(remote, Board):
            raise InputError(
                f"remote is a {type(remote).__name__}; pass what tvm_edge.connect() returns",
                name="remote",
                expected="tvm_edge.Remote",
                got=type(remote).__name__,
            )
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(
                "a board is sent a file; write the artifact to one, and pass its path",
                name="path",
                expected="a path",
                got=type(path).__name__,
            )
        return remote.load(path, device=device, num_threads=num_threads, cpus=cpus)
    threads = resolve_threads(num_threads, cpus)
    artifact = read_artifact(path, copy=copy)
    info = read_info(artifact)
    kind = str(info.target["kind"])
    what = f"the artifact {artifact.name!r}"
    check_host(what, info.target["architecture"], info.target["features"])
    index = device_index(device, kind)
    if programs := artifact.programs:
        try:
            DEVICES[kind].load_programs(programs)
        except ValueError as err:
            raise ArtifactError(f"{what}: {err}; export it again") from err
    library = LoadedLibrary(artifact, info.smaller)
    model = CompiledModel(info, library, artifact.weights, threads, index, artifact)
    _ = model._session  # a library that does not load should say so now
    model.build_programs()
    return model
