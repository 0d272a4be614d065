"""CUDA kernels start while the one before them ends: programmatic dependent launch.

One after another on a stream, and in a CUDA graph, a kernel is launched when the one before it has
written its results back. That costs a microsecond, where the latency of a small network's kernel is
two or three. Since compute capability 9.0 its work-groups can be placed before that, and wait for
those results themselves (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization").
"""

from __future__ import annotations

import re

import tvm
from tvm import tirx
from tvm.script import tirx as T

__all__ = ["DependentLaunches"]

_SINCE = 90
"""``griddepcontrol`` is an instruction from ``sm_90`` on (PTX ISA)."""

_FLAG = "tirx.use_programtic_dependent_launch"
"""TVM's name, as it is spelt there."""

_PARAMETERS = "tirx.kernel_launch_params"


@tirx.transform.prim_func_pass(opt_level=0, name="DependentLaunches")
class DependentLaunches:
    """Let kernels be launched early, and wait for the kernels before them, before they do anything.

    Each waits, also one that reads nothing of the kernel before it: that all earlier ones have
    ended then holds for the kernel after it as well, which may write what they read. Kernels
    of libraries are not marked, and start and end as ever.

    None calls ``launch_dependents``, so that the next one is launched when the work-groups of this
    one have ended. Launched earlier, its work-groups went where this one's were not, two and three
    on a multiprocessor beside idle ones: on an H100 resnet50_v1 had 1.6 times the latency, where
    launched at the end it is 1.04 times as fast (``benchmarks/RESULTS.md``).

    Runs on the kernels that ``SplitHostDevice`` made.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        launched = func.attrs.get(_PARAMETERS)
        if not launched or _capability(func.attrs["target"]) < _SINCE:
            return func
        wait = tirx.Evaluate(T.ptx.griddepcontrol.wait())
        # The size of the local memory has to be the last one.
        parameters = [_FLAG, *launched]
        return func.with_body(tirx.SeqStmt([wait, func.body])).with_attr(_PARAMETERS, parameters)


def _capability(target: tvm.target.Target) -> int:
    """Return a target's compute capability: of ``sm_90a`` 90; 0 for what is not CUDA."""
    number = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    return int(number[1]) if target.kind.name == "cuda" and number else 0
