"""Artifacts with something altered, given to the C API.

``python -m tests.native.alterations ARTIFACT FOLDER COUNT`` needs no TVM in Python.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.native.c_api import CModel, Failed, Library

__all__ = ["altered", "run_altered"]

_REFUSALS = (1, 2, 3, 4)  # an input, an artifact, a device, memory: no error of ours


def altered(artifact: Path, folder: Path, seed: int) -> Path:
    """An artifact with some bytes of one member changed; half of them sealed again."""
    random = np.random.default_rng(seed)
    path = folder / "altered.tvme"
    if seed % 2:
        content = bytearray(artifact.read_bytes())
        if seed % 5 == 0:
            del content[int(random.integers(len(content))) :]
        for place in random.integers(0, max(len(content), 1), 1 + seed % 4):
            if content:
                content[place] ^= int(random.integers(1, 256))
        path.write_bytes(content)
        return path

    def change(manifest: dict[str, Any]) -> None:
        """Put something else in a random place."""
        node: Any = manifest
        keys = [key for key in manifest if key != "checksums"]
        key: Any = keys[int(random.integers(len(keys)))]
        while isinstance(node[key], (dict, list)) and node[key] and random.integers(4):
            node = node[key]
            inside = list(node) if isinstance(node, dict) else range(len(node))
            key = inside[int(random.integers(len(inside)))]
        values = [None, -1, 0, 2**62, 1.5, "", "float64", [], {}, [1, 2], True, "\ud7ff" * 3]
        node[key] = values[int(random.integers(len(values)))]

    with zipfile.ZipFile(artifact) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            new.writestr(name, content)
    return path


def run_altered(artifact: Path, folder: Path, seeds: Iterable[int]) -> int:
    """Load and run alterations; how many were refused."""
    x = {"data": np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype("float32")}
    refused = 0
    library = Library()
    for seed in seeds:
        path = altered(artifact, folder, seed)
        try:
            model = CModel(path if seed % 3 else path.read_bytes(), library)
            model.run(x, ["pooled"])
            model.free()
        except Failed as error:
            assert error.status in _REFUSALS and str(error), (seed, error.status, str(error))
            refused += 1
    return refused


if __name__ == "__main__":
    print(run_altered(Path(sys.argv[1]), Path(sys.argv[2]), range(int(sys.argv[3]))))
