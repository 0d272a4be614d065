"""All benchmarks by the names that ``python -m benchmarks run`` takes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

__all__ = ["BENCHMARKS", "Benchmark"]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes
    ----------
    module : str
        Has a function ``main`` of the words of the command line.
    needs : str
        Devices, libraries and tools, beside tvm-edge and a CPU.
    """

    module: str
    needs: str = ""

    @property
    def topic(self) -> str:
        """The folder that it is in."""
        return self.module.split(".")[1]

    @property
    def about(self) -> str:
        """The first line of the module's docstring; nothing is imported for it."""
        path = Path(__file__).parents[1].joinpath(*self.module.split(".")).with_suffix(".py")
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        return words.partition("\n")[0].rstrip(".").replace("``", "`")

    def run(self, arguments: Sequence[str]) -> None:
        """Measure, and print what was found."""
        import_module(self.module).main(arguments)


_GPU = "an OpenCL or CUDA device, onnxruntime"

BENCHMARKS: Mapping[str, Benchmark] = {
    "cpu": Benchmark(
        "benchmarks.cpu.networks",
        "onnxruntime, openvino; --runtimes ncnn mnn: ncnn, pnnx, MNN; --networks new: see exports",
    ),
    "cpu_kernels": Benchmark("benchmarks.cpu.kernels", "onnx, onnxruntime"),
    "cpu_layers": Benchmark("benchmarks.cpu.layers", "onnxruntime, openvino, a C compiler"),
    "cpu_winograd": Benchmark("benchmarks.cpu.winograd_stages"),
    "cpu_peaks": Benchmark("benchmarks.cpu.peaks", "a C compiler"),
    "contention": Benchmark(
        "benchmarks.cpu.contention", "onnxruntime, openvino, ncnn, pnnx, MNN from PyPI"
    ),
    "cpu_workloads": Benchmark("benchmarks.cpu.workloads"),
    "arm_mca": Benchmark("benchmarks.arm_mca.table", "LLVM's llvm-mca, 19 or newer"),
    "gpu": Benchmark("benchmarks.gpu.networks", f"{_GPU}; with CUDA torch, cupy, gcc"),
    "gpu_layers": Benchmark("benchmarks.gpu.layers", "CUDA, onnxruntime, torch"),
    "gpu_slices": Benchmark("benchmarks.gpu.slices", "CUDA, MPS, onnxruntime, torch"),
    "gpu_compiled": Benchmark("benchmarks.gpu.compiled", "nvcc; for int8 onnxruntime"),
    "gpu_tiles": Benchmark("benchmarks.gpu.tiles", _GPU),
    "tensor_tiles": Benchmark("benchmarks.gpu.tensor_tiles", "CUDA with tensor cores, MPS"),
    "workgroup": Benchmark("benchmarks.gpu.workgroup", _GPU),
    "vision": Benchmark(
        "benchmarks.vision.operators", "onnxruntime; on CUDA torch, torchvision, nvcc"
    ),
    "vision_workloads": Benchmark("benchmarks.vision.workloads"),
    "memory": Benchmark("benchmarks.memory.networks", "onnxruntime"),
    "split_fc": Benchmark("benchmarks.memory.split_fc", "onnxruntime"),
    "parallel_fusion": Benchmark("benchmarks.fusion.operators", f"{_GPU}; with CUDA torch"),
    "parallel_models": Benchmark("benchmarks.fusion.models", f"{_GPU}; with CUDA torch"),
    "parallel_policy": Benchmark("benchmarks.fusion.policy"),
    "parallel_heat_map": Benchmark("benchmarks.fusion.heat_map", "matplotlib"),
    "parallel_workloads": Benchmark("benchmarks.fusion.workloads"),
    "compile_time": Benchmark("benchmarks.fusion.compile_time"),
    "tuning": Benchmark("benchmarks.tuning.search", "onnxruntime; with CUDA torch"),
    "tuning_metaschedule": Benchmark("benchmarks.tuning.metaschedule", "xgboost; with CUDA torch"),
    "graph_tuner": Benchmark("benchmarks.tuning.graph_tuner", "onnxruntime"),
    "boards": Benchmark("benchmarks.tuning.boards", "cloudpickle, psutil, tornado"),
    "records": Benchmark("benchmarks.tuning.records"),
    "startup": Benchmark("benchmarks.runtime.startup", "an installed tvm-edge"),
    "native": Benchmark("benchmarks.runtime.native", "onnx, g++"),
    "compilations": Benchmark("benchmarks.runtime.compilations"),
    "interrupts": Benchmark("benchmarks.runtime.interrupts", "onnx, a C++ compiler"),
    "kills": Benchmark("benchmarks.runtime.kills", "onnx, a C++ compiler, OpenCL"),
    "opencl_runtime": Benchmark("benchmarks.runtime.opencl_runtime", "OpenCL, gcc, g++"),
    "pipeline": Benchmark("benchmarks.runtime.pipeline", _GPU),
    "fallback": Benchmark("benchmarks.runtime.fallback", _GPU),
    "zoo": Benchmark("benchmarks.models.zoo", "onnxruntime"),
    "model_zoo_pypi": Benchmark("benchmarks.models.model_zoo_pypi", "onnx, onnxruntime, PyPI"),
    "exports": Benchmark("benchmarks.models.exports", "onnx, onnxruntime, PyPI"),
    "dynamic": Benchmark("benchmarks.models.dynamic", "onnx, onnxruntime, openvino, PyPI"),
    "onnx_conformance": Benchmark("benchmarks.models.onnx_conformance", "onnx"),
    "int8": Benchmark("benchmarks.models.int8", "onnxruntime; on a CPU openvino"),
    "trained": Benchmark(
        "benchmarks.models.trained", "onnxruntime, openvino, Pillow, PyPI: see exports"
    ),
    "precision": Benchmark("benchmarks.models.precision", "a GPU with float16, onnxruntime"),
    "detector": Benchmark("benchmarks.models.detector", "onnxruntime"),
    "operator_complexity": Benchmark("benchmarks.models.operator_complexity"),
    "paper_tables": Benchmark("benchmarks.papers.tables", "what its jobs need; matplotlib"),
}
