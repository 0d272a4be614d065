"""Write a part of a model as files of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tvm_edge.files import whole_file, writing
from tvm_edge.workflow.node_groups import Part

__all__ = ["dump_part"]


def dump_part(
    folder: Path, name: str, part: Part, expected: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
    """Write ``NAME.onnx``, ``NAME.inputs.npz`` and ``NAME.expected.npz``; return their paths.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    stem = re.sub(r"[^\w.-]+", "_", name).strip("_") or "node"
    outputs = {part.outputs[key]: value for key, value in expected.items()}
    written = []
    with writing(folder, advice="choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, arrays in (("inputs", part.inputs), ("expected", outputs)):
            path = folder / f"{stem}.{suffix}.npz"
            with whole_file(path) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            written.append(str(path))
        path = folder / f"{stem}.onnx"
        with whole_file(path) as file:
            file.write(part.model.SerializeToString())
        written.append(str(path))
    return tuple(sorted(written))
