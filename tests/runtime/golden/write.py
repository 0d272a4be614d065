"""Write the artifacts of this version.

    python -m tests.runtime.golden.write

Those of a version before are written by a copy of this file in a checkout of that version.

The kernels are for the oldest CPUs of their architectures.
"""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np

import tvm_edge
from tests.onnx_models import conv_relu, random_input, reference

__all__ = ["FOLDER", "TARGETS", "path_of"]

FOLDER = Path(__file__).parent
TARGETS = {
    "x86_64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
}


def path_of(version: str, architecture: str = platform.machine()) -> Path:
    """The artifact that a version, without its last number, wrote for an architecture."""
    return FOLDER / f"{version}-{architecture}.tvme"


def main() -> None:
    model, x = conv_relu(), {"data": random_input((1, 3, 16, 16))}
    version = ".".join(tvm_edge.__version__.split(".")[:2])
    for architecture, target in TARGETS.items():
        compiled = tvm_edge.compile(model, target, num_threads=1)
        print(compiled.export(path_of(version, architecture)))
    np.savez_compressed(FOLDER / "run.npz", **x, **reference(model, x))


if __name__ == "__main__":
    main()
