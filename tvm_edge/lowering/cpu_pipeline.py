"""From scheduled kernels to functions of a CPU: TVM's own passes, and merged parallel loops."""

from __future__ import annotations

from tvm_edge.lowering.ahead_loads import AheadLoads
from tvm_edge.lowering.bfloat16 import BFloat16Bits, BFloat16Instructions
from tvm_edge.lowering.half_loads import HalfLoads
from tvm_edge.lowering.register_arrays import RegisterArrays
from tvm_edge.lowering.task_places import TaskPlaces
from tvm_edge.lowering.transpose_tiles import TransposeTiles
from tvm_edge.lowering.tvm_passes import lowering_passes, register_pipeline
from tvm_edge.lowering.vector_elements import VectorElements

__all__ = ["CPU", "PASSES", "register"]

CPU = "tvm_edge.cpu"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""

PASSES = lowering_passes(
    types=[BFloat16Bits()],
    loops=[TransposeTiles()],
    elements=[BFloat16Instructions(), VectorElements(), HalfLoads(), AheadLoads()],
    arrays=[RegisterArrays(), TaskPlaces()],
)
"""Passes down to functions of the host and of the device, which are finished apart."""


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    register_pipeline(CPU, PASSES)
