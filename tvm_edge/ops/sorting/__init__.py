"""Operators that sort and search."""

from __future__ import annotations

from tvm_edge.ops.registry import Fitness, register, relax_names
from tvm_edge.ops.sorting import nonzero, top_k  # noqa: F401
from tvm_edge.ops.sorting.argsort import SEGMENTED_ARGSORT, segmented_argsort
from tvm_edge.ops.sorting.unique import UNIQUE, unique

__all__ = ["SEGMENTED_ARGSORT", "UNIQUE", "segmented_argsort", "unique"]

register(
    *relax_names("bucketize multinomial_from_uniform"),
    gpu=Fitness(
        left_out="it searches, in a kernel of TVM's that does so step by step in each work-item"
    ),
)
