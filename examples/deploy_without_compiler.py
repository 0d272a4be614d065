"""Compile here, run where there is no compiler: one file, TVM's runtime library, NumPy.

    python examples/deploy_without_compiler.py

The second half of it runs in a process that stands for the board: with ``TVM_USE_RUNTIME_LIB=1``
TVM loads its runtime library alone, and onnx cannot be imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# What runs on the board. `tvm_edge.load` needs tvm-edge without extras: no onnx, no compiler.
ON_THE_BOARD = """
import sys

sys.modules["onnx"] = None  # what `import onnx` finds where it is not installed
import numpy as np
import tvm_edge

artifact, inputs, outputs = sys.argv[1:]
model = tvm_edge.load(artifact)
np.savez(outputs, **model.run(dict(np.load(inputs))))
compiler = sorted({"tvm.relax", "tvm_edge.compiler", "tvm_edge.frontend"} & set(sys.modules))
print("  compiler loaded:", ", ".join(compiler) or "none")
print("  latency:", model.benchmark(dict(np.load(inputs)), repeat=20))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = compile_here(folder / "detector.tvme", folder / "inputs.npz")
        print("on the board")
        run_on_the_board(folder / "detector.tvme", folder / "inputs.npz", folder / "outputs.npz")
        found = np.load(folder / "outputs.npz")
        same = all(np.array_equal(found[name], value) for name, value in expected.items())
        print(f"  {len(found['scores'])} boxes, {'equal' if same else 'DIFFERENT'}")
        if not same:
            raise SystemExit("the board computes something else")


def compile_here(artifact: Path, inputs: Path) -> dict[str, np.ndarray]:
    """Export the detector and a picture; return what it finds in that."""
    import tvm_edge
    from tvm_edge import zoo

    picture = zoo.sample_input("shapes_ssd")
    model = tvm_edge.compile("zoo:shapes_ssd", "llvm")  # or a board's preset, "arm/rk3399"
    model.export(artifact)
    np.savez(inputs, **picture)
    print(f"compiled: {artifact.name}, {artifact.stat().st_size / 2**20:.1f} MiB")
    return model.run(picture)


def run_on_the_board(artifact: Path, inputs: Path, outputs: Path) -> None:
    """Run the artifact in a process without a compiler."""
    subprocess.run(
        [sys.executable, "-c", ON_THE_BOARD, artifact, inputs, outputs],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        check=True,
    )


if __name__ == "__main__":
    main()
