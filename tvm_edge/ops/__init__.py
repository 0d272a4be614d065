"""Composite operators that keep their name and attributes until kernels are chosen for them."""

from tvm_edge.ops.nms import NON_MAX_SUPPRESSION, non_max_suppression

__all__ = ["NON_MAX_SUPPRESSION", "non_max_suppression"]
