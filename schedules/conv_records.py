"""Convolutions and their configurations in the words of tuning records, and back.

A record is anybody's: what it says is taken only if the configuration space of that convolution on
that device has it, as a search on the device would have found it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from tvm_edge.hardware import DeviceSpec
from tvm_edge.records import LayoutRecord, TuningRecord, Workload
from tvm_edge.schedules.conv_config import ConfigSpace, ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import algorithm as on_cpu
from tvm_edge.schedules.gpu import algorithm as on_gpu
from tvm_edge.schedules.gpu.conv2d_int8 import uses_words
from tvm_edge.schedules.gpu.dot_products import GPU_DOT_PRODUCTS
from tvm_edge.schedules.gpu.tensor_space import on_tensor_cores
from tvm_edge.schedules.knobs import knobs_as_dict

__all__ = [
    "TEMPLATES",
    "config_of",
    "config_space",
    "outdated",
    "recorded_config",
    "recorded_target",
    "recorded_workload",
    "template_of",
]


def _of_instruction(name: str) -> str:
    """The template for int8 that a GPU multiplies by an instruction, four at a time."""
    return f"conv2d_int8.gpu.{name}" if name else "conv2d_int8.gpu"


TEMPLATES = {
    "conv2d.cpu": 1,
    "conv2d.gpu": 1,
    "conv2d.gpu.tensor": 2,
    "conv2d_int8.cpu": 2,
    "parallel.cpu": 1,
    "parallel.gpu": 1,
    **dict.fromkeys(map(_of_instruction, GPU_DOT_PRODUCTS), 1),
}
"""Templates and their versions. Raise one when its knobs come to mean other kernels: records of
the old version are then ignored."""


def template_of(spec: DeviceSpec, workload: ConvWorkload | None = None) -> str:
    """The template of a device's convolutions: of this one, or of those of float32.

    On tensor cores there is one for all types, which workloads say. Another GPU's for int8 names
    the instruction that multiplies words of them. With shifts in its place another tile is fastest.
    One by one all GPUs multiply int8 alike.
    """
    if workload is not None and on_tensor_cores(workload, spec):
        return "conv2d.gpu.tensor"
    if workload is None or not workload.is_bytes:
        return "conv2d.cpu" if spec.has_cpu_cores else "conv2d.gpu"
    if spec.has_cpu_cores:
        return "conv2d_int8.cpu"
    return _of_instruction(spec.dot_product if uses_words(workload) else "")


def config_space(workload: ConvWorkload, spec: DeviceSpec, *, blocks: bool = False) -> ConfigSpace:
    """Every configuration of a convolution on a device of either kind.

    A GPU's configurations in channel blocks are included with `blocks` only: they are chosen for
    whole networks. A CPU's are always included.
    """
    if spec.has_cpu_cores:
        return on_cpu.config_space(workload, spec)
    return on_gpu.config_space(workload, spec, blocks=blocks)


def recorded_workload(workload: ConvWorkload) -> Workload:
    """A convolution as records say it; for int8 also the types of filters and accumulators."""
    image = (workload.batch, workload.channels, workload.height, workload.width)
    filters = (workload.filters, workload.channels // workload.groups, *workload.kernel)
    # Lists, as JSON gives them back: equal workloads are equal objects.
    attributes = {
        "strides": list(workload.strides),
        "padding": list(workload.padding),
        "dilation": list(workload.dilation),
        "groups": workload.groups,
    }
    dtype = f"{workload.dtype},int8,int32" if workload.is_bytes else workload.dtype
    return Workload("conv2d", (image, filters), dtype, "NCHW", attributes)


def recorded_target(kind: str, spec: DeviceSpec) -> dict[str, str | int]:
    """The interface a device was used through and, for a CPU, the number of cores.

    Half of what a CPU's knobs say is how cores share the work.
    """
    return {"kind": kind, "cores": spec.cores} if spec.has_cpu_cores else {"kind": kind}


def recorded_config(config: ConvConfig) -> dict[str, str | int | float | bool]:
    """A configuration's knobs by name, as records have them."""
    kind = {"algorithm": config.algorithm, "block": config.block, "m": config.m}
    return {**kind, **knobs_as_dict(config.knobs)}


def outdated(record: TuningRecord | LayoutRecord) -> str:
    """Return the reason why a record's template does not hold here; empty if it does."""
    version = TEMPLATES.get(record.template)
    if version is None:
        return f"this version of tvm-edge has no template {record.template!r}"
    if record.template_version != version:
        return (
            f"it is of version {record.template_version} of the template {record.template}, which "
            f"is at {version}"
        )
    return ""


def config_of(record: TuningRecord, space: ConfigSpace, spec: DeviceSpec) -> ConvConfig:
    """The configuration that a record names.

    Parameters
    ----------
    record : TuningRecord
        Of the convolution of `space`.
    space : ConfigSpace
        On the device `spec`.

    Raises
    ------
    ValueError
        Of another template or version, measured with another number of a CPU's cores, or not legal
        here; the message says which.
    """
    reason = outdated(record)
    cores = record.target.get("cores", spec.cores)
    if not reason and spec.has_cpu_cores and cores != spec.cores:
        reason = f"it was measured with {cores} cores, and {spec.name} has {spec.cores}"
    template = template_of(spec, space.workload)
    if not reason and record.template != template:
        reason = f"it is of the template {record.template}, and {spec.name} has {template}"
    if reason:
        raise ValueError(reason)
    wanted = _text(record.config)
    for config in space.configs:
        if _text(recorded_config(config)) == wanted:
            return config
        chosen_by_schedule = replace(config, knobs="")
        if _text(recorded_config(chosen_by_schedule)) == wanted:
            return chosen_by_schedule
    knobs = " ".join(f"{name}={value}" for name, value in record.config.items())
    raise ValueError(f"{knobs} is not legal on {spec.name}")


def _text(config: Mapping[str, object]) -> str:
    """Equal for equal knobs of equal types: to Python, 1 is True."""
    return json.dumps(config, sort_keys=True)
