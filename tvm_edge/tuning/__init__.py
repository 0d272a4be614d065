"""Choosing kernels by measurement."""

from tvm_edge.tuning.convolutions import measure_convolutions

__all__ = ["measure_convolutions"]
