"""Choose the convolutions that run on tensor cores, in channel blocks of 16 bytes.

Blocks begin at the first of them and end where an operator has no kernel on blocks. The conversion
there is one pass over an image; a convolution without tensor cores is slower by ten of them.
A device too small for every tile keeps its other kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.ir.workloads import conv_workload, int8_conv
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_space import on_tensor_cores, tensor_config

__all__ = ["choose_tensor_blocks", "tensor_workload"]


def choose_tensor_blocks(
    func: relax.Function,
    spec: DeviceSpec,
    configs: Mapping[ConvWorkload, ConvConfig],
    *,
    tf32: bool,
) -> dict[relax.Call, ConvConfig]:
    """Return the convolutions in blocks, with the algorithm of each.

    They are those of float16 and int8, and with `tf32` those of float32. `configs` are of
    convolutions that somebody measured.
    """
    chosen: dict[relax.Call, ConvConfig] = {}
    if not spec.tensor_cores:
        return chosen
    bound = {binding.var: binding.value for binding in bindings_of(func)}
    for value in bound.values():
        workload = tensor_workload(value, bound, spec, tf32=tf32)
        if workload is not None:
            dtype = "float32" if workload.dtype == "tf32" else workload.dtype
            config = configs.get(workload) or tensor_config(workload, dtype, spec)
            assert config is not None, "on_tensor_cores says that there is one"
            chosen[value] = config
    return chosen


def tensor_workload(
    value: relax.Expr,
    bound: Mapping[relax.Var, relax.Expr],
    spec: DeviceSpec,
    *,
    tf32: bool,
) -> ConvWorkload | None:
    """Return the workload of a convolution on tensor cores, its type ``tf32`` of rounded float32.

    Parameters
    ----------
    value : relax.Expr
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    spec : DeviceSpec
    tf32 : bool
        Whether they may round float32.
    """
    found, whole = conv_workload(value, ("float16", "float32")), int8_conv(value, bound)
    if found is not None:
        dtype = "float16" if str(value.ty.dtype) == "float16" else "tf32" if tf32 else "float32"
        workload = replace(found[0], dtype=dtype)
    elif whole is not None:
        workload = whole.workload
    else:
        return None
    return workload if on_tensor_cores(workload, spec) else None
