"""Choose the convolutions that run on tensor cores, in channel blocks of 16 bytes.

Blocks begin at the first of them and end where an operator has no kernel on blocks. The conversion
there is one pass over an image; a convolution without tensor cores is slower by ten of them.
A device too small for every tile keeps its other kernels.
"""

from __future__ import annotations

from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.ir.workloads import conv_workload, int8_conv
from tvm_edge.schedules.blocked import fills
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS, TensorConv, tensor_applies
from tvm_edge.schedules.gpu.tensor_tile import possible_tensor_tiles

__all__ = ["choose_tensor_blocks", "tensor_config", "tensor_objection"]


def choose_tensor_blocks(
    func: relax.Function, spec: DeviceSpec, *, tf32: bool
) -> dict[relax.Call, ConvConfig]:
    """Return the convolutions in blocks, with the algorithm of each.

    They are those of float16 and int8, and with `tf32` those of float32.
    """
    chosen: dict[relax.Call, ConvConfig] = {}
    if not spec.tensor_cores:
        return chosen
    bound = {binding.var: binding.value for binding in bindings_of(func)}
    floats = ("float16", "float32") if tf32 else ("float16",)
    for value in bound.values():
        found, whole = conv_workload(value, floats), int8_conv(value, bound)
        if whole is not None and str(whole.image.ty.dtype) == "int8":
            workload, dtype = whole.workload, "int8"
        elif found is not None:
            workload, dtype = found[0], str(value.ty.dtype)
        else:
            continue
        config = tensor_config(workload, dtype, spec)
        if config is not None:
            chosen[value] = config
    return chosen


def tensor_config(workload: ConvWorkload, dtype: str, spec: DeviceSpec) -> ConvConfig | None:
    """Return the algorithm of a convolution in such blocks, ``None`` if there is none."""
    if tensor_objection(workload, dtype, spec):
        return None
    return ConvConfig("window" if workload.depthwise else "tensor", BLOCKS[dtype])


def tensor_objection(workload: ConvWorkload, dtype: str, spec: DeviceSpec) -> str:
    """Return why a convolution is not in such blocks; empty if it is."""
    block = BLOCKS.get(dtype)
    if not spec.tensor_cores or block is None:
        return f"{spec.name} has no tensor cores for {dtype}"
    if workload.depthwise:
        few = f"{workload.channels} channels do not fill blocks of {block}"
        return "" if fills(workload.channels, block) else few
    if not tensor_applies(workload):
        return "kernels of tensor cores are for one group and windows of 32 taps at most"
    if not possible_tensor_tiles(TensorConv.of(workload, dtype), spec):
        items = spec.max_work_group_size
        return f"no tile of tensor cores fits work-groups of {items} items"
    return ""
