"""The storage that a planner gave to tensors, read off the instructions of ``main``.

Both planners, TVM's for one device and ours for several, leave the same instructions:
``alloc_storage`` allocates a buffer, ``alloc_tensor`` puts tensors into it, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.aliases import Held, holds, reached
from tvm_edge.relay_passes.ir.expressions import all_bindings, is_call, may_hold_tensors
from tvm_edge.relay_passes.ir.vdevices import vdevices_of
from tvm_edge.schedules.accesses import constant

__all__ = ["Storage", "by_device", "over_time", "planned_storages"]


@dataclass(frozen=True)
class Storage:
    """A buffer for tensors: its device, and how many bytes."""

    device: str
    nbytes: int


def planned_storages(lowered: tvm.IRModule) -> dict[relax.Var, Storage]:
    """The storages of known size that ``main`` allocates; those of results are the caller's.

    ``""`` is the device of a module that has only one.
    """
    body = lowered["main"].body
    bindings = list(all_bindings(body))
    results = set(relax.analysis.free_vars(body.body))
    for binding in reversed(bindings):
        if binding.var in results and may_hold_tensors(binding.var.ty):
            # What it is made from: a view's tensor, a tensor's storage.
            value = binding.value
            ends = (
                (value.true_branch.body, value.false_branch.body)
                if isinstance(value, relax.If)
                else (value,)
            )
            results.update(var for end in ends for var in relax.analysis.free_vars(end))
    names = _device_names(lowered)
    found = {}
    for binding in bindings:
        value = binding.value
        if (
            is_call(value, "relax.vm.alloc_storage")
            and binding.var not in results
            and isinstance(value.args[0], relax.ShapeExpr)  # else known only in the run
        ):
            nbytes = _product(value.args[0].values) or 0
            found[binding.var] = Storage(names[int(value.args[1].value)], nbytes)
    return found


def by_device(lowered: tvm.IRModule, storages: Mapping[relax.Var, Storage]) -> dict[str, int]:
    """Bytes of the storages of each of the module's devices."""
    found = dict.fromkeys(_device_names(lowered), 0)
    for storage in storages.values():
        found[storage.device] += storage.nbytes
    return found


def over_time(
    lowered: tvm.IRModule, storages: Mapping[relax.Var, Storage], launches: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return by device the bytes that hold values at each kernel.

    A tensor holds them from where it is allocated, which is before the kernel that writes it, to
    its last use, views and names of it included.

    Parameters
    ----------
    lowered : IRModule
        Without recorded regions.
    storages : mapping of relax.Var to Storage
        What :func:`planned_storages` finds in it.
    launches : sequence of str
        The kernels of a run, in order.

    Returns
    -------
    dict of str to tuple of int
        One number for each launch; empty if ``main`` calls other kernels than `launches`, as with
        branches, whose kernels do not all run.
    """
    names = set(launches)
    held: dict[relax.Var, Held] = {}
    lives: dict[relax.Var, list[int]] = {}  # the launches before it, and by its last use
    homes: dict[relax.Var, tuple[relax.Var, int]] = {}
    seen: list[str] = []
    for block in lowered["main"].body.blocks:
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if isinstance(value, relax.If):
                return {}
            if is_call(value, "relax.vm.kill_object"):
                continue
            launched = _callee(value) in names
            if launched:
                seen.append(_callee(value))
            for tensor in reached(value, held):
                lives[tensor][1] = len(seen) - 1
            if is_call(value, "relax.vm.alloc_tensor") and value.args[0] in storages:
                storage = value.args[0]
                size = _nbytes(value)
                homes[var] = (storage, storages[storage].nbytes if size is None else size)
                lives[var] = [len(seen), len(seen) - 1]
                held[var] = frozenset([var])
            else:
                held[var] = holds(value, held)
    if seen != list(launches):
        return {}
    alive: list[dict[relax.Var, int]] = [{} for _ in seen]
    for tensor, (first, last) in lives.items():
        storage, nbytes = homes[tensor]
        for launch in alive[first : last + 1]:
            # A storage has one tensor at a time; where a name seems to keep two, the larger.
            launch[storage] = max(nbytes, launch.get(storage, 0))
    return {
        device: tuple(
            sum(size for storage, size in each.items() if storages[storage].device == device)
            for each in alive
        )
        for device in _device_names(lowered)
    }


def _device_names(lowered: tvm.IRModule) -> list[str]:
    return [str(device.target.kind.name) for device in vdevices_of(lowered)] or [""]


def _callee(value: relax.Expr) -> str:
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        return str(value.op.name_hint)
    return ""


def _nbytes(call: relax.Call) -> int | None:
    """Bytes of the tensor that ``alloc_tensor`` makes; ``None`` if only the run knows."""
    shape, dtype = call.args[2], call.args[3]
    if not isinstance(shape, relax.ShapeExpr):
        return None
    count = _product(shape.values)
    return None if count is None else count * int(tvm.DataType(str(dtype.value)).itemsize)


def _product(dims: Iterable[object]) -> int | None:
    """``None`` if one is known only in the run."""
    found = 1
    for length in map(constant, dims):
        if length is None:
            return None
        found *= length
    return found
