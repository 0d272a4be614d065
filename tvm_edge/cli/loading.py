"""The model that a command works on, here or on a board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_edge.cli import printing
from tvm_edge.errors import InputError
from tvm_edge.files import read_npz, temporary_folder

if TYPE_CHECKING:
    import numpy as np

    from tvm_edge.rpc import Remote

__all__ = ["connected", "is_artifact", "opened_model", "read_arrays"]

_DEFAULT_TARGET = "llvm"
_OF_COMPILATION = {
    "input_shapes": "--input-shapes",
    "input_values": "--input-values",
    "preprocess": "--preprocess",
    "target": "--target",
    "tuning_logs": "--tuning-records",
}


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

    compilation = {
        "target": target,
        "input_shapes": input_shapes,
        "input_values": input_values,
        "preprocess": preprocess,
        "tuning_logs": tuning_logs,
    }
    compiled = is_artifact(source, compilation)
    with temporary_folder("artifact") as folder:
        if not compiled:
            with printing.compiling(source) as progress:
                model = tvm_edge.compile(
                    source,
                    **{**compilation, "target": target or _DEFAULT_TARGET},
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


def is_artifact(source: str, options: Mapping[str, Any]) -> bool:
    """Return whether `source` is an artifact, by its name, and no model to compile.

    Raises
    ------
    InputError
        It is one, and `options` has some of a compilation.
    """
    if Path(source).suffix != ".tvme":
        return False
    for name, option in _OF_COMPILATION.items():
        if options[name] not in (None, {}):
            raise InputError(
                f"{source!r} is an artifact, already compiled; leave out {option}, or give the "
                "model",
                name=option,
            )
    return True


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the inputs of a run from an ``.npz`` file.

    Raises
    ------
    InputError
    """
    advice = "write them with numpy.savez(path, **inputs)"
    return read_npz(path, "inputs", name="inputs", advice=advice)
