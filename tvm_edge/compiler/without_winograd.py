"""Convolutions without Winograd's algorithm, for a model that has to do with less memory.

Its images take 2.25 to 4 times their room transformed, and its filters 1.8 to 4 times theirs.
"""

from __future__ import annotations

from dataclasses import replace

import tvm

from tvm_edge.compiler.tuned import Tuned, convolutions
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import algorithm as cpu
from tvm_edge.schedules.gpu import algorithm as gpu

__all__ = ["without_winograd"]


def without_winograd(
    tuned: Tuned, mod: tvm.IRModule, resolved: ResolvedTarget, precision: str
) -> Tuned:
    """The same with another configuration of each convolution that would be by Winograd's.

    Parameters
    ----------
    tuned : Tuned
        What was measured of the model.
    mod : tvm.IRModule
        Placed; its convolutions still are operators.
    resolved : ResolvedTarget
    precision : str
    """
    found = list(convolutions(mod, resolved, ("float32", "float16")))
    configs = dict(tuned.configs)
    changed = set()
    for workload in dict.fromkeys(workload for workload, _ in found):
        config = configs.get(workload) or _chosen(workload, resolved, precision, winograd=True)
        if config.algorithm == "winograd":
            configs[workload] = _chosen(workload, resolved, precision, winograd=False)
            changed.add(workload)
    nodes = {node for workload, node in found if workload in changed}
    origins = {node: origin for node, origin in tuned.origins.items() if node not in nodes}
    return replace(tuned, configs=configs, origins=origins)


def _chosen(
    workload: ConvWorkload, resolved: ResolvedTarget, precision: str, *, winograd: bool
) -> ConvConfig:
    spec = resolved.spec
    if spec.has_cpu_cores:
        return cpu.choose_config(workload, spec, winograd=winograd)
    return gpu.choose_config(workload, spec, precision, winograd=winograd)
