"""Copies between a GPU and the CPU that shared memory spares.

To the host: its kernels read a view of the device tensor, which kernels of the device may read too.
The view extends the life of what it views, so the memory planner gives its storage to nobody else.

To the device: a kernel of the host writes where the device will read. The tensor is on the device
from the beginning, and kernels of the host see it through a view.

What a device can do is found out when the model runs: where its memory is its own after all, or
must be mapped in another way, the functions called here copy.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Lives, reached
from tvm_edge.relay_passes.ir.copy_functions import HAND_OVER, READ
from tvm_edge.relay_passes.ir.expressions import is_call, static_shape
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of

__all__ = ["shared_copies"]


def shared_copies(mod: tvm.IRModule, shared: Collection[str]) -> dict[relax.Var, str]:
    """Return the ``to_vdevice`` of ``main`` that need no copy.

    Left to copies are results of the model, which are the caller's to write; what a kernel writes
    in place later on; and to the GPU all but tensors of known shape that a kernel of the CPU makes.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators are kernels, and copies ``to_vdevice``.
    shared : collection of {"read", "write"}
        Accesses of the host to tensors of the device where they are.

    Returns
    -------
    dict of Var to str
        For the variable of a copy :data:`READ` or :data:`HAND_OVER`.
    """
    found: dict[relax.Var, str] = {}
    lives = Lives(mod["main"])
    if any(isinstance(binding.value, relax.If) for binding in lives.bindings):
        return found  # what branches read, write and result in is not looked at
    gpu = vdevices_of(mod)[0]
    written: set[relax.Var] = set()
    for position, binding in enumerate(lives.bindings):
        var, value = binding.var, binding.value
        if not is_call(value, "relax.to_vdevice"):
            continue
        sources = reached(value.args[0], lives.held)
        later = max(lives.overwritten.get(each, -1) for each in {var, *sources})
        if later > position:
            continue
        if not is_same(vdevice_of(value.ty) or gpu, gpu):
            if "read" in shared and sources and var not in lives.results:
                found[var] = READ
        elif "write" in shared and len(sources) == 1:
            (source,) = sources
            if source in lives.made and not sources & (lives.results | written):
                shape = static_shape(value.ty)
                if shape is not None and math.prod(shape) == math.prod(lives.made[source]):
                    written.add(source)
                    found[var] = HAND_OVER
    return found
