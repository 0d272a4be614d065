"""Launches that the driver records once and replays: CUDA graphs, OpenCL command buffers.

Whether a driver records is found out when the model runs: the same code launches kernel by kernel
where it does not.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from tvm_edge.relay_passes.instructions.add_functions import add_functions
from tvm_edge.runtime.entry import ALL, KERNEL_BY_KERNEL, by_shape, part_sizes

__all__ = ["with_recordings", "with_recordings_by_shape"]

# What makes RewriteCUDAGraph rewrite, for either kind of device.
_USE = {"relax.backend.use_cuda_graph": True}


def with_recordings(
    plain: tvm.IRModule, lifted: tvm.IRModule, record: Callable[[tvm.IRModule], tvm.IRModule]
) -> tvm.IRModule:
    """Instructions whose runs of static shapes are recorded when they are first made.

    Parameters
    ----------
    plain, lifted : IRModule
        Instructions without recordings, and what they were made of, whose ``main`` takes the
        weights as its last parameter.
    record : callable
        Makes instructions with recordings of such a module.

    Returns
    -------
    IRModule
        ``main`` as it is in `plain` is there under another name, for the profiler: what is replayed
        cannot be timed kernel by kernel.
    """
    recorded = _recorded(lifted, record)
    again = plain["main"].with_attr("global_symbol", KERNEL_BY_KERNEL)
    name = tvm.ir.GlobalVar(KERNEL_BY_KERNEL)
    relax.expr._update_type(name, again.ty)
    recorded.update_func(name, again)
    return recorded


def with_recordings_by_shape(
    plain: tvm.IRModule, lifted: tvm.IRModule, record: Callable[[tvm.IRModule], tvm.IRModule]
) -> tvm.IRModule:
    """Instructions of a model with open dimensions, and a ``main`` recorded for each shape.

    Parameters
    ----------
    plain, lifted, record
        As of :func:`with_recordings`; what `record` makes takes the memory of its tensors.

    Returns
    -------
    IRModule
        ``main`` is as in `plain`, for shapes that are not recorded.
        :func:`~tvm_edge.runtime.entry.by_shape` is not there if nothing of it would be recorded.
    """
    recorded = _recorded(lifted, record)
    entries = {ALL: by_shape(ALL), part_sizes(ALL): part_sizes(ALL)}
    lifted_too = (f for f in recorded.functions.values() if isinstance(f, relax.Function))
    if sum(1 for _ in lifted_too) == len(entries):  # no region was lifted
        return plain
    made = plain.clone()
    add_functions(made, recorded, entries)
    return made


def _recorded(lifted: tvm.IRModule, record: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    main = lifted["main"]
    # Weights stay where they are, so that a recording may name them.
    marked = lifted.clone()
    marked["main"] = main.with_attr("num_input", len(main.params) - 1)
    with tvm.transform.PassContext(config=_USE):
        return record(marked)
