"""Check an installed wheel; needs nothing but the wheel, and g++ to export.

    python smoke.py [artifact inputs.npz outputs.npz]

Compiles a small network, runs, exports and loads it, here and in a process that has TVM's runtime
library only. With an artifact that was made elsewhere, runs that too, without a compiler and
without onnx, and compares. With ``tvm-edge[onnx]`` it compiles the detector as well.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_WITHOUT_COMPILER = """
import sys

sys.modules["onnx"] = None
import numpy as np
import tvm_edge

artifact, inputs, outputs = sys.argv[1:]
found = tvm_edge.load(artifact).run(dict(np.load(inputs)))
for name, expected in np.load(outputs).items():
    np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
assert "tvm.relax" not in sys.modules and "tvm_edge.compiler" not in sys.modules
"""


def main() -> None:
    import tvm_edge
    from tvm_edge import opencl

    print("tvm-edge", tvm_edge.__version__, "from", Path(tvm_edge.__file__).parent)
    assert opencl.library_path().is_file()
    assert "devices" in opencl.status()  # the library is loaded, whether there is a device or not
    assert tvm_edge.doctor().healthy, tvm_edge.doctor()
    subprocess.run([Path(sys.executable).with_name("tvm-edge"), "doctor"], check=True)
    with tempfile.TemporaryDirectory() as name:
        _relax(Path(name))
        if importlib.util.find_spec("onnx"):
            _detector()
        else:
            _no_onnx()
    if len(sys.argv) > 1:
        _run_without_compiler(*sys.argv[1:])
        print("an artifact made elsewhere: runs")
    print("all well")


def _relax(folder: Path) -> None:
    """Compile, run, export and load a dense layer with a ReLU."""
    import tvm_edge

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 4), dtype=np.float32)
    x = rng.standard_normal((2, 8), dtype=np.float32)
    model = tvm_edge.compile(_dense(weight), "llvm")
    (found,) = model.run({"x": x}).values()
    np.testing.assert_allclose(found, np.maximum(x @ weight, 0), rtol=1e-4, atol=1e-5)
    artifact = model.export(folder / "dense.tvme")
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "y.npz", **{model.outputs[0].name: found})
    _run_without_compiler(artifact, folder / "x.npz", folder / "y.npz")
    print("a Relax module: compiles, runs, exports, loads without a compiler")


def _dense(weight: np.ndarray) -> Any:
    from tvm import relax

    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(weight)))
            y = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(y)
    return builder.get()


def _detector() -> None:
    import tvm_edge
    from tvm_edge import zoo

    found = tvm_edge.compile("zoo:shapes_ssd", "llvm").run(zoo.sample_input("shapes_ssd"))
    assert (found["scores"] > 0.5).any(), found
    print("the detector: finds something")


def _no_onnx() -> None:
    import tvm_edge

    try:
        tvm_edge.compile("zoo:shapes_ssd", "llvm")
    except tvm_edge.MissingDependencyError as error:
        assert "tvm-edge[onnx]" in str(error), error
        print("no onnx, and the message says what to install")
    else:
        raise AssertionError("an ONNX model was read without onnx")


def _run_without_compiler(*arguments: str | Path) -> None:
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    command = [sys.executable, "-c", _WITHOUT_COMPILER, *map(str, arguments)]
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
