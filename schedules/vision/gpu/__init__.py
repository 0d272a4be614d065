"""Sorts and scans for OpenCL and CUDA, with and without local memory."""

from tvm_edge.schedules.vision.gpu.scan import LineScan, scan_lines
from tvm_edge.schedules.vision.gpu.segments import argsort_segments
from tvm_edge.schedules.vision.gpu.select import top_k_rows
from tvm_edge.schedules.vision.gpu.sort import argsort_rows

__all__ = [
    "LineScan",
    "argsort_rows",
    "argsort_segments",
    "scan_lines",
    "top_k_rows",
]
