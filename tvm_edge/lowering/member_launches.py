"""Launches of a composed kernel after lowering: the members that run in each."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_edge.lowering import cpu_pipeline, cuda_pipeline, opencl_pipeline
from tvm_edge.lowering.merge_stages import MERGED

__all__ = ["Launches", "merged_launches", "with_merged_launches"]

Launches = tuple[tuple[int, ...], ...]
"""For each launch (on a CPU: parallel loop) the numbers of the members that run in it."""

_PIPELINES = {
    "cuda": cuda_pipeline.PASSES,
    "llvm": cpu_pipeline.PASSES,
    "opencl": opencl_pipeline.PASSES,
}


def with_merged_launches(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """A composed kernel, lowered so far that its launches are merged.

    Parameters
    ----------
    func : PrimFunc
        Of :func:`tvm_edge.lowering.parallel_members.compose`.
    target : Target
        Of the device, with its host.
    """
    passes = _PIPELINES[target.kind.name]
    last = next(i for i, one in enumerate(passes) if one.info.name == "MergeLaunches")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with target:
        mod = tirx.transform.BindTarget(target)(mod)
        return tvm.transform.Sequential(passes[: last + 1])(mod)["main"]


def merged_launches(func: tirx.PrimFunc) -> Launches:
    """Return the members that run together in a kernel of :func:`with_merged_launches`.

    Launches that stayed alone are in it too; empty where the members share memory and so run one
    after the other as they were.
    """
    return tuple(tuple(int(n) for n in members) for members in func.attrs.get(MERGED, []))
