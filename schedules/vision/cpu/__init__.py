"""Sorts, scans and suppression for CPUs, whose loops are shared out among cores."""

from tvm_edge.schedules.vision.cpu.nms import Suppression
from tvm_edge.schedules.vision.cpu.scan import scan_lines
from tvm_edge.schedules.vision.cpu.select import top_k_rows
from tvm_edge.schedules.vision.cpu.sort import argsort_rows, argsort_segments
from tvm_edge.schedules.vision.cpu.unique import first_elements, unique

__all__ = [
    "Suppression",
    "argsort_rows",
    "argsort_segments",
    "first_elements",
    "scan_lines",
    "top_k_rows",
    "unique",
]
