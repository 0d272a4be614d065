"""Layouts of images on a device: NCHW, and the channel blocks that its convolutions know.

A layout is the number of channels in a block, 0 for NCHW.
"""

from __future__ import annotations

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules import blocked
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import algorithm as on_cpu
from tvm_edge.schedules.gpu import channel_blocks as on_gpu
from tvm_edge.schedules.gpu.tensor_space import on_tensor_cores, tensor_block
from tvm_edge.schedules.int8 import BLOCK
from tvm_edge.schedules.pairs import multiplies_pairs, pair_block

__all__ = ["block_sizes", "image_block", "usual_block"]


def block_sizes(spec: DeviceSpec) -> tuple[int, ...]:
    """Sizes of a channel block, on a CPU the usual one first; none if there is only NCHW."""
    return on_cpu.block_sizes(spec) if spec.has_cpu_cores else on_gpu.SIZES


def usual_block(spec: DeviceSpec, workload: ConvWorkload | None = None) -> int:
    """The layout that convolutions have unless somebody chose it for the whole network.

    That of `workload`, or of those of float32.
    """
    if not spec.has_cpu_cores:
        is_tensor = workload is not None and on_tensor_cores(workload, spec)
        return tensor_block(workload) if workload is not None and is_tensor else 0
    return BLOCK if workload is not None and workload.is_bytes else spec.lanes()


def image_block(workload: ConvWorkload, block: int, spec: DeviceSpec) -> int:
    """Channels in a block of the image that a convolution reads to write blocks of `block`.

    1 where it reads channels one by one, which is NCHW; 0 if it has no kernel for such blocks.
    """
    if spec.has_cpu_cores:
        if multiplies_pairs(workload, spec):
            return pair_block(workload, block)
        return blocked.input_block(workload, block)
    return on_gpu.image_block(workload, block)
