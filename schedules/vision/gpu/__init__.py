"""Sorts and scans for OpenCL and CUDA, with and without local memory."""

from tvm_edge.schedules.vision.gpu.scan import scan_lines
from tvm_edge.schedules.vision.gpu.sort import argsort_rows, argsort_segments, top_k_rows

__all__ = ["argsort_rows", "argsort_segments", "scan_lines", "top_k_rows"]
