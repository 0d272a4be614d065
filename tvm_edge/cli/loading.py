"""The model that a command works on, here or on a board."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.cli import printing
from tvm_edge.errors import InputError
from tvm_edge.files import temporary_folder

if TYPE_CHECKING:
    from tvm_edge.rpc import Remote

__all__ = ["connected", "opened_model", "read_arrays"]

_DEFAULT_TARGET = "llvm"


@contextmanager
def connected(tracker: str | None, key: str | None) -> Iterator[Remote | None]:
    """The board that the options name, for as long as the block runs; ``None`` without them.

    Raises
    ------
    InputError
        A key without a tracker.
    """
    if tracker is None:
        if key is not None:
            raise InputError(
                f"--rpc-key {key} is given without --rpc-tracker; add --rpc-tracker HOST:PORT",
                name="--rpc-key",
            )
        yield None
        return
    import tvm_edge

    with printing.progress(f"connecting to {key or tracker}"):
        board = tvm_edge.connect(tracker, key)
    with board:
        yield board


@contextmanager
def opened_model(
    source: str,
    *,
    target: Any,
    input_shapes: Any,
    input_values: Any,
    preprocess: Any,
    num_threads: int | None,
    cpus: list[int] | None,
    tuning_logs: Any,
    rpc_tracker: str | None,
    rpc_key: str | None,
) -> Iterator[Any]:
    """An artifact loaded, or a model compiled, here or on a board, for as long as the block runs.

    Raises
    ------
    InputError
        `source` is an artifact and compile options were given.
    """
    import tvm_edge

    is_artifact = Path(source).suffix == ".tvme"
    if is_artifact:
        for option, value in (
            ("--input-shapes", input_shapes or None),
            ("--input-values", input_values or None),
            ("--preprocess", preprocess),
            ("--target", target),
            ("--tuning-records", tuning_logs),
        ):
            if value is not None:
                raise InputError(
                    f"{source!r} is an artifact, already compiled; leave out {option}, or give "
                    "the model",
                    name=option,
                )
    with temporary_folder("artifact") as folder:
        if not is_artifact:
            with printing.compiling(source) as progress, printing.plain_warnings():
                model = tvm_edge.compile(
                    source,
                    target or _DEFAULT_TARGET,
                    input_shapes=input_shapes,
                    input_values=input_values,
                    preprocess=preprocess,
                    tuning_logs=tuning_logs,
                    num_threads=num_threads,
                    progress=progress,
                    cpus=cpus,
                )
            if rpc_tracker is None and rpc_key is None:
                yield model
                return
            source = str(model.export(folder / f"{Path(source).stem}.tvme"))
        # Not before: a board serves nobody else while it is ours.
        with connected(rpc_tracker, rpc_key) as board:
            with printing.progress(f"loading {source}"):
                loaded = tvm_edge.load(source, num_threads=num_threads, cpus=cpus, remote=board)
            yield loaded


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the inputs of a run from an ``.npz`` file.

    Raises
    ------
    InputError
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not hasattr(archive, "files"):
                raise ValueError("it holds one array without a name")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError) as err:
        raise InputError(
            f"cannot read inputs from {str(path)!r}: {err}; "
            "write them with numpy.savez(path, **inputs)",
            name="inputs",
            expected="an .npz file",
            got=str(path),
        ) from err
