"""Runtimes that run files of their own: ncnn and MNN, converted from ONNX by their tools."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.correctness import load_expected, load_inputs
from benchmarks.common.onnx_runtime import Run

__all__ = ["CONVERTED", "LOW_CONVERTED", "convert"]

_PNNX_TYPES = {"float32": "", "int64": "i64", "int32": "i32"}


def convert(peer: str, name: str, folder: Path) -> dict[str, Any]:
    """A job: write the network as the peer reads it, in float32.

    By the converters themselves: the commands that their wheels install want PyTorch, and send
    what they converted to a server.

    Raises
    ------
    RuntimeError
        The converter failed, or ended without a file.
    """
    peer = peer.partition("-")[0]
    made = folder / f"{name}.{'ncnn.param' if peer == 'ncnn' else 'mnn'}"
    if made.exists():
        return {}
    if peer == "ncnn":
        (package,) = find_spec("pnnx").submodule_search_locations
        shapes = [
            str(list(data.shape)).replace(" ", "") + _PNNX_TYPES[str(data.dtype)]
            for data in load_inputs(name, folder).values()
        ]
        inputs = f"inputshape={','.join(shapes)}"
        command = [str(Path(package, "pnnx")), f"{name}.onnx", inputs, "fp16=0"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"pnnx ended with status {done.returncode}")
    else:
        import _tools  # MNN's own

        source, target = str(folder / f"{name}.onnx"), str(made)
        command = ["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel", target]
        _tools.mnnconvert([*command, "--bizCode", "tvm-edge"])
    if not made.exists():
        raise RuntimeError(f"{peer}'s converter wrote no file")
    return {}


def _load_ncnn(name: str, threads: int, folder: Path, *, low: bool = False) -> Run:
    """A function that runs the network in ncnn, in float16 if `low` and ncnn can."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, low)
    # It says what it lacks on its error output, and would run into it.
    if net.load_param(str(folder / f"{name}.ncnn.param")):
        raise RuntimeError("ncnn lacks a layer of the converted file")
    if net.load_model(str(folder / f"{name}.ncnn.bin")):
        raise RuntimeError("ncnn does not read the converted weights")
    given, results = net.input_names(), net.output_names()
    expected = load_expected(name, folder)
    if len(results) != len(expected):
        raise RuntimeError(f"{len(results)} of {len(expected)} outputs are in the converted file")

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        extractor = net.create_extractor()
        for tensor, data in zip(given, inputs.values(), strict=True):
            # A copy: layers that work in place would write to the array, past what it owns.
            extractor.input(tensor, ncnn.Mat(data[0] if data.ndim else data.reshape(1)).clone())
        found = {}
        for tensor, (output, like) in zip(results, expected.items(), strict=True):
            status, value = extractor.extract(tensor)
            if status:
                raise RuntimeError(f"ncnn ends with {status} at {output}")
            found[output] = np.array(value).reshape(like.shape)
        return found

    return run


def _load_mnn(name: str, threads: int, folder: Path, *, low: bool = False) -> Run:
    """A function that runs the network in MNN, in its precision ``low`` if asked for."""
    from MNN import expr, nn

    given, expected = list(load_inputs(name, folder)), load_expected(name, folder)
    config = {"backend": 0, "numThread": threads, "precision": "low" if low else "high"}
    manager = nn.create_runtime_manager((config,))
    path = str(folder / f"{name}.mnn")
    net = nn.load_module_from_file(path, given, list(expected), runtime_manager=manager)

    def variable(data: np.ndarray) -> Any:
        kind = expr.float if data.dtype == np.float32 else expr.int
        data = data if data.dtype == np.float32 else data.astype(np.int32)
        made = expr.const(data, list(data.shape), expr.NCHW, kind)
        return expr.convert(made, expr.NC4HW4) if data.ndim == 4 else made

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = net.onForward([variable(inputs[tensor]) for tensor in given])
        return {
            output: np.array(expr.convert(found, expr.NCHW).read()).reshape(like.shape)
            for found, (output, like) in zip(results, expected.items(), strict=True)
        }

    return run


LOW_CONVERTED = ("ncnn-low", "mnn-low")
"""Those in a lower precision."""

CONVERTED: Mapping[str, Callable[[str, int, Path], Run]] = {
    "ncnn": _load_ncnn,
    "mnn": _load_mnn,
    "ncnn-low": partial(_load_ncnn, low=True),
    "mnn-low": partial(_load_mnn, low=True),
}
"""Loader of each of them, for the file that :func:`convert` wrote."""
