"""Models without Python: start, memory, and what a call costs from C++ and from Python.

A model of one kernel of 48 numbers is run: a call takes what is not kernels. TVM's virtual machine
is part of it, and is measured alone as well: runs on inputs that are placed already. ``shapes_ssd``
is loaded and run once for the time from ``main`` to the first result, and for resident memory.
Growth is that of anonymous memory, after a tenth of the runs or loads. Prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser

ROUNDS, CALLS = 15, 2000


def build(program: Path) -> None:
    """Compile the program that calls the C API."""
    import tvm
    import tvm_ffi

    from tvm_edge.library_path import library_path

    package = Path(__file__).parents[2] / "tvm_edge"
    library = library_path()
    folders = [Path(str(module.__file__)).parent / "lib" for module in (tvm, tvm_ffi)]
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O2", f"-I{package / 'native/include'}"),
            *(str(Path(__file__).with_name("native_calls.cc")), str(library)),
            *(f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath-link,{':'.join(map(str, folders))}"),
            *("-o", str(program)),
        ],
        check=True,
    )


def python_us(path: Path) -> dict[str, float]:
    """Microseconds of a call in Python, and of TVM's virtual machine in it."""
    import tvm_edge

    model = tvm_edge.load(path, num_threads=1)
    inputs = {spec.name: np.zeros(spec.typical_shape, spec.dtype) for spec in model.inputs}
    session, every = model._session, model._every
    placed = session.place(every, every.bind(inputs, model._input_devices))
    found: dict[str, list[float]] = {"python_us": [], "machine_us": []}
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(CALLS):
            model.run(inputs)
        found["python_us"].append((perf_counter() - start) / CALLS * 1e6)
        start = perf_counter()
        session.run_placed(every, placed, CALLS)
        found["machine_us"].append((perf_counter() - start) / CALLS * 1e6)
    return {name: round(median(values), 2) for name, values in found.items()}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("native", __doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--loads", type=int, default=1_000)
    options = parser.parse_args(arguments)
    import onnx
    from onnx import TensorProto, helper

    import tvm_edge

    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 3, 4, 4)) for n in "xy"]
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "tiny", value[:1], value[1:])
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx_model.ir_version = min(onnx_model.ir_version, onnx.IR_VERSION)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, tiny, detector = (folder / each for each in ("calls", "tiny.tvme", "ssd.tvme"))
        tvm_edge.compile(onnx_model, "llvm", num_threads=1).export(tiny)
        compiled = tvm_edge.compile("zoo:shapes_ssd", "llvm")
        compiled.export(detector)
        build(program)

        def native(mode: str, path: Path, *count: int) -> dict[str, Any]:
            words = [str(program), mode, str(path), *map(str, count)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            return dict(json.loads(done.stdout))

        memory = compiled.report.memory
        starts = [native("start", detector) for _ in range(ROUNDS)]
        print(
            json.dumps(
                {
                    **describe_machine(),
                    "start": {key: median(each[key] for each in starts) for key in starts[0]},
                    "weights_and_activations_kib": memory
                    and (memory.weights + memory.activations + memory.workspace) // 1024,
                    "call": native("calls", tiny, options.runs),
                    "python": python_us(tiny),
                    "runs": native("calls", detector, max(options.runs // 100, 10)),
                    "loads": native("loads", tiny, options.loads),
                },
                indent=2,
            )
        )
