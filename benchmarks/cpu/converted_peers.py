"""Runtimes that run files of their own: ncnn and MNN, converted from ONNX by their tools."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.correctness import load_expected, load_inputs
from benchmarks.common.onnx_runtime import Run

__all__ = ["convert", "load_mnn", "load_ncnn"]


def convert(peer: str, name: str, folder: Path) -> dict[str, Any]:
    """A job: write the network as the peer reads it, in float32.

    By the converters themselves: the commands that their wheels install want PyTorch, and send
    what they converted to a server.
    """
    if peer == "ncnn" and not (folder / f"{name}.ncnn.param").exists():
        (package,) = find_spec("pnnx").submodule_search_locations
        (data,) = load_inputs(name, folder).values()
        shape = ",".join(map(str, data.shape))
        command = [str(Path(package, "pnnx")), f"{name}.onnx", f"inputshape=[{shape}]", "fp16=0"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    if peer == "mnn" and not (folder / f"{name}.mnn").exists():
        import _tools  # MNN's own

        source, target = (str(folder / f"{name}.{kind}") for kind in ("onnx", "mnn"))
        command = ["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel", target]
        _tools.mnnconvert([*command, "--bizCode", "tvm-edge"])
    return {}


def load_ncnn(name: str, threads: int, folder: Path) -> Run:
    """A function that runs the network in ncnn, in float32 as the others."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    net.load_param(str(folder / f"{name}.ncnn.param"))
    net.load_model(str(folder / f"{name}.ncnn.bin"))
    (given,), (result,) = net.input_names(), net.output_names()
    (output, expected), *_ = load_expected(name, folder).items()

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        (data,) = inputs.values()
        extractor = net.create_extractor()
        extractor.input(given, ncnn.Mat(data[0]))
        _, found = extractor.extract(result)
        return {output: np.array(found).reshape(expected.shape)}

    return run


def load_mnn(name: str, threads: int, folder: Path) -> Run:
    """A function that runs the network in MNN, in float32 as the others."""
    from MNN import expr, nn

    (given, _), *_ = load_inputs(name, folder).items()
    (output, expected), *_ = load_expected(name, folder).items()
    config = {"backend": 0, "numThread": threads, "precision": "high"}
    manager = nn.create_runtime_manager((config,))
    path = str(folder / f"{name}.mnn")
    net = nn.load_module_from_file(path, [given], [output], runtime_manager=manager)

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        (data,) = inputs.values()
        variable = expr.const(data, list(data.shape), expr.NCHW, expr.float)
        (found,) = net.onForward([expr.convert(variable, expr.NC4HW4)])
        return {output: np.array(expr.convert(found, expr.NCHW).read()).reshape(expected.shape)}

    return run
