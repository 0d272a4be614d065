"""Functions of the runtime that copy tensors between a GPU and the CPU, by name.

Functions of the OpenCL runtime (``tvm_edge/opencl/csrc/host_access.h``) but for the copy, which is
TVM's. They run between recorded kernels: TVM's pass for CUDA graphs takes in calls of functions by
other names than ``vm.builtin``'s.
"""

from __future__ import annotations

from tvm import relax

__all__ = [
    "COPY",
    "FINISH_READ",
    "FINISH_WRITE",
    "HAND_OVER",
    "READ",
    "START_READ",
    "START_WRITE",
    "WRITE",
    "calls",
]

COPY = "runtime.TVMTensorCopyFromTo"
READ = "vm.builtin.tvm_edge.read_on_host"
WRITE = "vm.builtin.tvm_edge.write_on_host"
HAND_OVER = "vm.builtin.tvm_edge.hand_over"
START_READ = "vm.builtin.tvm_edge.start_read"  # of CUDA's tensors as well
FINISH_READ = "vm.builtin.tvm_edge.finish_read"
START_WRITE = "vm.builtin.tvm_edge.start_write"
FINISH_WRITE = "vm.builtin.tvm_edge.finish_write"


def calls(value: relax.Expr, name: str) -> bool:
    """Return whether an expression, of a lowered module, calls one of these functions."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.ExternFunc)
        and str(value.op.global_symbol) == name
    )
