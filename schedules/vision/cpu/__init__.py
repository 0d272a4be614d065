"""Sorts and scans for CPUs, whose loops are divided among cores."""

from tvm_edge.schedules.vision.cpu.scan import scan_lines
from tvm_edge.schedules.vision.cpu.select import top_k_rows
from tvm_edge.schedules.vision.cpu.sort import argsort_rows, argsort_segments
from tvm_edge.schedules.vision.cpu.unique import first_elements, unique

__all__ = [
    "argsort_rows",
    "argsort_segments",
    "first_elements",
    "scan_lines",
    "top_k_rows",
    "unique",
]
