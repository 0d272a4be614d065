"""Tensors that are never alive at the same time share storage, on each device by itself.

TVM's planner (``StaticPlanBlockMemory``) does not look at devices: in a module with several it
gives a tensor storage of another device. What it does well is kept: what it leaves is what
``RewriteCUDAGraph`` takes for memory that stays where it is.

Each storage serves tensors one after the other, all from its first byte, as kernels want them. They
are shared out from the largest tensor to the smallest (Pisarchyk and Lee 2020, "Efficient Memory
Management for Deep Neural Net Inference", greedy by size for shared objects).

Nobody still reads a tensor when the next is written into its storage. A GPU does everything in the
order of one queue, copies included. A copy has done with the host's memory when it returns: OpenCL
waits for its end; for CUDA's ``cudaMemcpyAsync`` the driver takes what leaves pageable memory into
memory of its own, and waits for what arrives there. The virtual machine's pool, which hands out the
host's memory again as soon as a tensor is freed, relies on that too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Held, holds, reached
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call, static_shape, with_bindings

__all__ = ["PlanMemory"]


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """Allocate tensors of static shape in ``main`` from storages; runs after ``CallTIRRewrite``.

    Results, which are the caller's, tensors of other shapes and what the host reads as a shape stay
    ``R.builtin.alloc_tensor``: the last, because ``RewriteCUDAGraph`` takes an operator on planned
    storage for a kernel that can be recorded.

    Parameters
    ----------
    devices : iterable of int
        Positions of the virtual devices whose tensors are planned. Those of the others are left
        for another pass.
    """

    def __init__(self, devices: Iterable[int]) -> None:
        self._devices = frozenset(devices)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        storages = _shared([t for t in _tensors(main) if t.device in self._devices])
        mod = mod.clone()
        mod[gvar] = _rewritten(main, storages)
        return mod


@dataclass(frozen=True)
class _Tensor:
    """An allocation, and the first and the last binding for which it must keep its values."""

    var: relax.Var
    call: relax.Call
    first: int
    last: int

    @cached_property  # asked for often
    def nbytes(self) -> int:
        shape = static_shape(self.call.ty)
        assert shape is not None
        return math.prod(shape) * int(tvm.DataType(self.call.ty.dtype).itemsize)

    @property
    def device(self) -> int:
        return int(self.call.args[2].value)

    @property
    def scope(self) -> str:
        return str(self.call.args[3].value)


@dataclass
class _Storage:
    """Memory for the first of its tensors, which is the largest."""

    tensors: list[_Tensor]

    @property
    def nbytes(self) -> int:
        return self.tensors[0].nbytes

    def takes(self, tensor: _Tensor) -> bool:
        """Return whether a tensor, no larger than those before, is never alive with one of them."""
        return all(other.last < tensor.first or tensor.last < other.first for other in self.tensors)

    def idle(self, tensor: _Tensor) -> int:
        """Bindings between a tensor's life and the nearest of the others'."""
        return min(
            tensor.first - other.last if other.last < tensor.first else other.first - tensor.last
            for other in self.tensors
        )


def _shared(tensors: Iterable[_Tensor]) -> list[_Storage]:
    """Storages for these tensors, those of each device and scope by themselves."""
    places: dict[tuple[int, str], list[_Tensor]] = {}
    for tensor in tensors:
        places.setdefault((tensor.device, tensor.scope), []).append(tensor)
    storages = []
    for place in places.values():
        # Neither way is better for all networks: by 8 % for some, worse by 20 % for others.
        plans = [_greedy(place, lambda s, _: s.nbytes), _greedy(place, _Storage.idle)]
        storages += min(plans, key=lambda plan: sum(storage.nbytes for storage in plan))
    return storages


def _greedy(
    tensors: Iterable[_Tensor], misfit: Callable[[_Storage, _Tensor], int]
) -> list[_Storage]:
    """The largest tensors first, each into the storage that fits it best of those that take it."""
    storages: list[_Storage] = []
    for tensor in sorted(tensors, key=lambda t: -t.nbytes):
        fitting = [storage for storage in storages if storage.takes(tensor)]
        if fitting:
            min(fitting, key=lambda s: misfit(s, tensor)).tensors.append(tensor)
        else:
            storages.append(_Storage([tensor]))
    return storages


def _tensors(main: relax.Function) -> list[_Tensor]:
    """The allocations that can be planned, in order."""
    made: dict[relax.Var, tuple[int, relax.Call]] = {}
    last: dict[relax.Var, int] = {}
    held: dict[relax.Var, Held] = {}
    left: set[relax.Var] = set()
    bindings = bindings_of(main)
    for position, binding in enumerate(bindings):
        var, value = binding.var, binding.value
        if is_call(value, "relax.tensor_to_shape"):
            left |= reached(value, held)
        for used in reached(value, held):
            last[used] = position
        if is_call(value, "relax.builtin.alloc_tensor") and static_shape(value.ty) is not None:
            made[var] = (position, value)
            last[var] = position
            held[var] = frozenset([var])
        else:
            held[var] = holds(value, held)
    left |= reached(main.body.body, held)
    return [
        _Tensor(var, call, first, last[var])
        for var, (first, call) in made.items()
        if var not in left
    ]


def _rewritten(main: relax.Function, storages: list[_Storage]) -> relax.Function:
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
