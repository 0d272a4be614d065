"""Operators that compute shapes."""

from __future__ import annotations

from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.registry import PERFORMS, Fitness, register, relax_names

__all__: list[str] = []

register("Shape", "Size", stored_types=True, flops=no_flops)
register(
    *relax_names("shape_of shape_to_tensor tensor_to_shape"),
    gpu=Fitness(impossible="the host computes shapes"),
    flops=no_flops,
)
register("relax.size", gpu=PERFORMS, flops=no_flops)
