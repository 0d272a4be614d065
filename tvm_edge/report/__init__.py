"""Report of a compilation, in a form that people and programs read."""

from tvm_edge.report.compile_report import CompileReport
from tvm_edge.report.decisions import KernelInfo, Launches, ModelAlone, Placement
from tvm_edge.report.dims import Dim
from tvm_edge.report.layouts import LayoutsInfo, TransformInfo, layout_name
from tvm_edge.report.memory import MemoryInfo, PlanInfo
from tvm_edge.report.operators import (
    FlopsBin,
    FlopsDistribution,
    OperatorInfo,
    OperatorTypeInfo,
    UnsupportedInfo,
)
from tvm_edge.report.precision import PrecisionInfo
from tvm_edge.report.records import RecordsInfo
from tvm_edge.report.splits import SplitInfo
from tvm_edge.report.tensors import ModelPart, TensorSpec

__all__ = [
    "CompileReport",
    "Dim",
    "FlopsBin",
    "FlopsDistribution",
    "KernelInfo",
    "Launches",
    "LayoutsInfo",
    "MemoryInfo",
    "ModelAlone",
    "ModelPart",
    "OperatorInfo",
    "OperatorTypeInfo",
    "Placement",
    "PlanInfo",
    "PrecisionInfo",
    "RecordsInfo",
    "SplitInfo",
    "TensorSpec",
    "TransformInfo",
    "UnsupportedInfo",
    "layout_name",
]
