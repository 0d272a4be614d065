"""Load and run artifacts, on TVM's runtime tier: no compiler, no ONNX."""

import tvm_edge.runtime_tier  # noqa: F401  TVM, before others import it
from tvm_edge.runtime.benchmark import BenchmarkResult, Timing
from tvm_edge.runtime.device_plan import DevicePlan
from tvm_edge.runtime.frame_stream import FrameStream
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.loader import load
from tvm_edge.runtime.model import CompiledModel
from tvm_edge.runtime.profile import KernelTime, Profile

__all__ = [
    "BenchmarkResult",
    "CompiledModel",
    "DevicePlan",
    "FrameStream",
    "KernelTime",
    "ModelInfo",
    "Profile",
    "Timing",
    "load",
]
