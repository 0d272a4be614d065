"""Launches of a model that the driver records: the host starts one command instead of a hundred.

CUDA graphs, and on OpenCL command buffers (``cl_khr_command_buffer``). Whether an OpenCL driver
records is found out when the model runs: the same code launches kernel by kernel where it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tvm
from tvm import relax

from tvm_edge.compiler import phases
from tvm_edge.hardware.kinds import KINDS
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL

__all__ = ["RECORDING", "lower_recorded"]

RECORDING = frozenset(kind.name for kind in KINDS.values() if kind.records_launches)
"""The kinds of devices whose drivers record."""

# What makes RewriteCUDAGraph rewrite, for either kind.
_USE = {"relax.backend.use_cuda_graph": True}


def lower_recorded(
    lifted: tvm.IRModule, kinds: Sequence[str], shared: Collection[str] = ()
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Lower a module for a device that records, and maybe others beside it.

    Parameters
    ----------
    lifted : IRModule
        Scheduled kernels; ``main`` takes the weights as its last parameter.
    kinds : sequence of str
        Of the devices; the first is one of :data:`RECORDING`.
    shared : collection of {"read", "write"}
        What the CPU does with the GPU's tensors where they are.

    Returns
    -------
    recorded : IRModule
        Runs of static shapes are recorded when they are first made. ``main`` as it would be
        without is there under another name, for the profiler: what is replayed cannot be timed
        kernel by kernel.
    plain : IRModule
        The module without recordings, whose storage can be read off.
    """
    plain = phases.lower(len(kinds), shared=shared)(lifted)
    main = lifted["main"]
    # Weights stay where they are, so that a recording may name them.
    marked = lifted.clone()
    marked["main"] = main.with_attr("num_input", len(main.params) - 1)
    with tvm.transform.PassContext(config=_USE):
        recorded = phases.lower(len(kinds), kinds[0], shared)(marked)
    again = plain["main"].with_attr("global_symbol", KERNEL_BY_KERNEL)
    name = tvm.ir.GlobalVar(KERNEL_BY_KERNEL)
    relax.expr._update_type(name, again.ty)
    recorded.update_func(name, again)
    return recorded, plain
