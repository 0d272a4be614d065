"""Kernels with the loops of a CPU become launches, on OpenCL devices that are CPUs.

Runs after the passes that put results in the place of others: they work on kernels whose last
parameter is the result.
"""

from __future__ import annotations

import tvm

from tvm_edge.schedules.grid import GRID, as_grid

__all__ = ["LaunchGrids"]


@tvm.transform.module_pass(opt_level=0, name="LaunchGrids")
class LaunchGrids:
    """Make launches of the kernels that :func:`tvm_edge.schedules.grid.schedule` scheduled."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if func.attrs is not None and func.attrs.get(GRID, False):
                grid = as_grid(func)
                assert grid is not None, "it could be launched when it was scheduled"
                updated.update_func(gvar, grid)
        return updated
