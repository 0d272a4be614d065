"""Tasks of a network: its distinct convolutions, and how often it has each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_edge.hardware import ResolvedTarget
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import config_space, recorded_workload
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.layouts import usual_block
from tvm_edge.tuning.tunable import convolutions_of

__all__ = ["Task", "digest", "extract_layout_tasks", "extract_tasks", "legal_configs"]


@dataclass(frozen=True)
class Task:
    """Convolution whose fastest configuration is to be found.

    Attributes
    ----------
    workload : ConvWorkload
    count : int
        How often the network has it: its weight where trials are shared out.
    configs : tuple of ConvConfig
        Configurations to choose from. The first is the heuristic's choice; those of one algorithm
        stand best first, by the cost model of its schedule.
    """

    workload: ConvWorkload
    count: int
    configs: tuple[ConvConfig, ...]

    @property
    def flops(self) -> int:
        """Multiplications and additions of one run, as the definition has them."""
        return 2 * self.workload.macs


def extract_tasks(
    model: Any,
    resolved: ResolvedTarget,
    inputs: Mapping[str, Any] | None = None,
    precision: str = "float32",
) -> list[Task]:
    """Return a model's convolutions that have a choice on a device, in the model's order.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule or ``"zoo:NAME"``
    resolved : ResolvedTarget
    inputs : mapping, optional
        Options of :func:`~tvm_edge.frontend.load_model`: ``input_shapes`` and others.
    precision : str
        As for :func:`tvm_edge.compile`.
    """
    tasks = []
    found = convolutions_of(model, resolved, inputs, precision)
    for workload, count in found.items():
        configs = legal_configs(workload, resolved)
        if len(configs) > 1:
            tasks.append(Task(workload, count, configs))
    return tasks


def extract_layout_tasks(
    workloads: Mapping[ConvWorkload, int], resolved: ResolvedTarget
) -> list[Task]:
    """Return the tasks that a graph tuner needs besides, one for each other layout.

    Parameters
    ----------
    workloads : mapping of ConvWorkload to int
        How often the network has each.
    resolved : ResolvedTarget
    """
    tasks = []
    for workload, count in workloads.items():
        by_block: dict[int, list[ConvConfig]] = {}
        for config in config_space(workload, resolved.spec, blocks=True).configs:
            by_block.setdefault(config.block, []).append(config)
        if len(by_block) == 1:
            continue  # NCHW alone, or channel blocks of int8: nothing to choose
        if len(legal_configs(workload, resolved)) > 1:
            del by_block[usual_block(resolved.spec, workload)]  # is a task already
        # Those of few configurations first: NCHW has one.
        tasks += [Task(workload, count, tuple(own)) for own in sorted(by_block.values(), key=len)]
    return tasks


def legal_configs(workload: ConvWorkload, resolved: ResolvedTarget) -> tuple[ConvConfig, ...]:
    """Return the configurations that a search may choose from.

    On CPUs images stay in channel blocks of one vector register, int8 images in blocks of their
    own, on GPUs in NCHW, or in blocks that tensor cores multiply: transforms between two
    convolutions are not a matter of one convolution.
    """
    usual = usual_block(resolved.spec, workload)
    configs = config_space(workload, resolved.spec).configs
    return tuple(config for config in configs if config.block == usual)


def digest(tasks: Sequence[Task], *more: str) -> str:
    """Name a set of tasks, and whatever else decides how they are tuned."""
    known = [
        [recorded_workload(task.workload).key, task.count, len(task.configs)] for task in tasks
    ]
    return hashlib.sha256(json.dumps([known, *more]).encode()).hexdigest()[:16]
