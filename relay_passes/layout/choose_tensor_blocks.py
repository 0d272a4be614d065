"""Choose the convolutions of float16 that run on tensor cores, in blocks of eight channels.

Blocks begin at the first of them and end where an operator has no kernel on blocks. The conversion
there is one pass over an image; a convolution without tensor cores is slower by ten of them.
A device too small for every tile keeps its other kernels.
"""

from __future__ import annotations

from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.schedules.blocked import fills
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.gpu.tensor_conv import BLOCK, TensorConv, tensor_applies
from tvm_edge.schedules.gpu.tensor_tile import possible_tensor_tiles

__all__ = ["choose_tensor_blocks"]


def choose_tensor_blocks(func: relax.Function, spec: DeviceSpec) -> dict[relax.Call, ConvConfig]:
    """Return the convolutions in blocks of eight channels, with the algorithm of each."""
    chosen: dict[relax.Call, ConvConfig] = {}
    if not spec.tensor_cores:
        return chosen
    for binding in bindings_of(func):
        found = conv_workload(binding.value, ("float16",))
        if found is None:
            continue
        workload = found[0]
        if tensor_applies(workload):
            if possible_tensor_tiles(TensorConv.of(workload), spec):
                chosen[binding.value] = ConvConfig("tensor", BLOCK)
        elif workload.depthwise and fills(workload.channels, BLOCK):
            chosen[binding.value] = ConvConfig("window", BLOCK)
    return chosen
