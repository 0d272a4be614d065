"""What a compilation did, in a form that people and programs read."""

from tvm_edge.report.compile_report import CompileReport, KernelInfo, MemoryInfo, Placement
from tvm_edge.report.tensors import TensorSpec

__all__ = ["CompileReport", "KernelInfo", "MemoryInfo", "Placement", "TensorSpec"]
