"""Artifacts with something altered, given to the C API.

``python -m tests.native.alterations ARTIFACT FOLDER COUNT`` needs no TVM in Python.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.fuzz.artifacts import apply, random_edits
from tests.native.c_api import CModel, Failed, Library

__all__ = ["altered", "run_altered"]

_REFUSALS = (1, 2, 3, 4)  # an input, an artifact, a device, memory: no error of ours


def altered(artifact: Path, folder: Path, seed: int) -> Path:
    """An artifact with something altered; of even seeds, its digests are right again.

    Those have any part of the manifest, the weights' size or the archive changed, and the code as
    it was: it is what the machine executes.
    """
    content = artifact.read_bytes()
    path = folder / "altered.tvme"
    if seed % 2:
        path.write_bytes(_damaged(content, seed))
    else:
        with zipfile.ZipFile(artifact) as archive:
            manifest = json.loads(archive.read("manifest.json"))
        path.write_bytes(apply(content, random_edits(seed, manifest)))
    return path


def _damaged(sound: bytes, seed: int) -> bytes:
    """Some bytes changed, and of a fifth the end cut off."""
    random = np.random.default_rng(seed)
    content = bytearray(sound)
    if seed % 5 == 0:
        del content[int(random.integers(len(content))) :]
    for place in random.integers(0, max(len(content), 1), 1 + seed % 4):
        if content:
            content[place] ^= int(random.integers(1, 256))
    return bytes(content)


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
