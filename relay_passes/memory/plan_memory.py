"""Tensors that are never alive at the same time share storage, on each device by itself.

TVM's planner (``StaticPlanBlockMemory``) does not look at devices: in a module with several it
gives a tensor storage of another device. What it does well is kept: what it leaves is what
``RewriteCUDAGraph`` takes for memory that stays where it is.

Nobody still reads a tensor when the next is written into its storage. A GPU does everything in the
order of one queue, copies included. A copy has done with the host's memory when it returns: OpenCL
waits for its end; for CUDA's ``cudaMemcpyAsync`` the driver takes what leaves pageable memory into
memory of its own, and waits for what arrives there. The virtual machine's pool, which hands out the
host's memory again as soon as a tensor is freed, relies on that too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import with_bindings
from tvm_edge.relay_passes.memory.shared_storage import Storage, allocations, shared
from tvm_edge.schedules.typical import evaluate

__all__ = ["PlanMemory"]


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """Allocate tensors in ``main`` from storages of fixed size; runs after ``CallTIRRewrite``.

    Results, which are the caller's, tensors of lengths that nothing bounds and what the host reads
    as a shape stay ``R.builtin.alloc_tensor``: the last, because ``RewriteCUDAGraph`` takes an
    operator on planned storage for a kernel that can be recorded.

    Parameters
    ----------
    devices : iterable of int
        Positions of the virtual devices whose tensors are planned. Those of the others are left
        for another pass.
    largest : mapping of str to int, optional
        Largest lengths of open dimensions, by name.
    """

    def __init__(self, devices: Iterable[int], largest: Mapping[str, int] | None = None) -> None:
        self._devices = frozenset(devices)
        self._largest = largest or {}

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        tensors = [t for t in allocations(main, self._nbytes) if t.device in self._devices]
        mod = mod.clone()
        mod[gvar] = _rewritten(main, shared(tensors))
        return mod

    def _nbytes(self, call: relax.Call) -> int | None:
        shape = [evaluate(length, self._largest) for length in call.args[0].values]
        if any(length is None for length in shape):
            return None
        itemsize = int(tvm.DataType(call.ty.dtype).itemsize)
        return math.prod(length or 0 for length in shape) * itemsize


def _rewritten(main: relax.Function, storages: list[Storage]) -> relax.Function:
    """The function with its tensors in these storages, each made where it is first needed."""
    builder = relax.BlockBuilder()
    home = {tensor.var: storage for storage in storages for tensor in storage.tensors}
    made: dict[int, relax.Var] = {}

    def allocated(binding: relax.Binding) -> Iterator[relax.Binding]:
        storage = home.get(binding.var)
        if storage is None:
            yield binding
            return
        shape, dtype, device, scope = binding.value.args
        if id(storage) not in made:
            of_largest = storage.tensors[0].call.args[1]
            call = relax.op.memory.alloc_storage(
                relax.ShapeExpr([storage.nbytes]), device, scope, of_largest
            )
            call = builder.normalize(call)
            made[id(storage)] = relax.Var("storage", call.ty)
            yield relax.VarBinding(made[id(storage)], call)
        call = relax.op.memory.alloc_tensor(made[id(storage)], 0, shape, dtype, device)
        yield relax.VarBinding(binding.var, builder.normalize(call))

    return with_bindings(main, allocated)
