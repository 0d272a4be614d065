"""Composite operators that keep their name and attributes until kernels are chosen for them."""

from tvm_edge.ops.nms import NON_MAX_SUPPRESSION, non_max_suppression
from tvm_edge.ops.scan import SCAN, scan
from tvm_edge.ops.sort import SEGMENTED_ARGSORT, segmented_argsort
from tvm_edge.ops.unique import UNIQUE, unique

__all__ = [
    "NON_MAX_SUPPRESSION",
    "SCAN",
    "SEGMENTED_ARGSORT",
    "UNIQUE",
    "non_max_suppression",
    "scan",
    "segmented_argsort",
    "unique",
]
