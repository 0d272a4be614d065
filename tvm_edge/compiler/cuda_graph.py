"""Launches of a model recorded as CUDA graphs: the host starts one instead of a hundred."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.compiler import phases
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL

__all__ = ["lower_for_cuda"]

_USE = {"relax.backend.use_cuda_graph": True}


def lower_for_cuda(lifted: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Lower a module for one CUDA device.

    Parameters
    ----------
    lifted : IRModule
        Scheduled kernels; ``main`` takes the weights as its last parameter.

    Returns
    -------
    recorded : IRModule
        Runs of static shapes are recorded when they are first made. ``main`` as it would be
        without is there under another name, for the profiler: what is replayed cannot be timed
        kernel by kernel.
    plain : IRModule
        The module without graphs, whose storage can be read off.
    """
    plain = phases.LOWER(lifted)
    main = lifted["main"]
    # Weights stay where they are, so that a graph may name them.
    marked = lifted.clone()
    marked["main"] = main.with_attr("num_input", len(main.params) - 1)
    with tvm.transform.PassContext(config=_USE):
        recorded = phases.LOWER_CUDA_GRAPH(marked)
    again = plain["main"].with_attr("global_symbol", KERNEL_BY_KERNEL)
    name = tvm.ir.GlobalVar(KERNEL_BY_KERNEL)
    relax.expr._update_type(name, again.ty)
    recorded.update_func(name, again)
    return recorded, plain
