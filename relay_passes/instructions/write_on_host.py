"""Let kernels of the host write into memory that the GPU reads."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.copy_functions import (
    COPY,
    FINISH_READ,
    FINISH_WRITE,
    HAND_OVER,
    READ,
    START_WRITE,
    WRITE,
    calls,
)
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call, static_shape, with_bindings
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of

__all__ = ["WriteOnHost"]


@tvm.transform.module_pass(opt_level=0, name="WriteOnHost")
class WriteOnHost:
    """Have kernels of the CPU write into the tensors that are handed over to the GPU.

    Runs after ``CallTIRRewrite`` and before the memory planner. A tensor whose allocation it
    does not find is copied when it is handed over.

    A kernel that writes waits until the GPU is done with what the memory held before. Where the GPU
    may have other work then, the tensor takes its memory before that work is enqueued, and the wait
    is for what was enqueued earlier alone.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        bindings = bindings_of(main)
        values = {binding.var: binding.value for binding in bindings}
        homes: dict[relax.Var, relax.Var] = {}  # by the CPU's tensor the GPU's
        for binding in bindings:
            if calls(binding.value, HAND_OVER):
                source, target = binding.value.args
                made = _allocation(source, values)
                if made is not None and made not in homes and _is_planned(values.get(target)):
                    homes[made] = target
        if not homes:
            return mod
        places = {made: _idle_from(bindings, made, homes[made]) for made in homes}
        mod = mod.clone()
        mod[gvar] = _rewritten(main, homes, places, values)
        return mod


def _is_planned(value: relax.Expr | None) -> bool:
    """Return whether this is an allocation that can be made anywhere."""
    return is_call(value, "relax.builtin.alloc_tensor") and static_shape(value.ty) is not None


def _allocation(tensor: relax.Expr, values: dict[relax.Var, relax.Expr]) -> relax.Var | None:
    """The variable of the allocation that a name or a view stands for."""
    while isinstance(tensor, relax.Var) and tensor in values:
        value = values[tensor]
        if _is_planned(value):
            return tensor
        if isinstance(value, relax.TupleGetItem):
            whole = values.get(value.tuple_value)
            value = whole.fields[value.index] if isinstance(whole, relax.Tuple) else None
        elif is_call(value, "relax.reshape"):
            value = value.args[0]
        tensor = value
    return None


def _idle_from(bindings: list[relax.Binding], made: relax.Var, home: relax.Var) -> relax.Var | None:
    """The first binding after which no kernel has to be waited for, if kernels of the GPU follow.

    It stands where the host last waited for the GPU on its way to the CPU's kernel, whose result
    is allocated as `made`; where that wait was for an earlier place, there.
    """
    positions = {binding.var: position for position, binding in enumerate(bindings)}
    end = positions[made]
    start = 0
    for position in range(end - 1, -1, -1):
        value = bindings[position].value
        if calls(value, FINISH_READ):
            start = positions[value.args[0]]
            break
        if calls(value, READ) or calls(value, COPY):
            start = position + 1
            break
    gpu = vdevice_of(home.ty)
    for binding in bindings[start:end]:
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            device = vdevice_of(value.args[-1].ty)
            if device is None or gpu is None or is_same(device, gpu):
                return bindings[start].var
    return None


def _rewritten(
    main: relax.Function,
    homes: dict[relax.Var, relax.Var],
    places: dict[relax.Var, relax.Var | None],
    values: dict[relax.Var, relax.Expr],
) -> relax.Function:
    builder = relax.BlockBuilder()
    moved = frozenset(homes.values())
    early: dict[relax.Var, list[relax.Var]] = {}
    for made, place in places.items():
        if place is not None:
            early.setdefault(place, []).append(made)
    started: dict[relax.Var, relax.Var] = {}

    def call(name: str, argument: relax.Expr, ty: relax.Type) -> relax.Expr:
        return builder.normalize(relax.Call(relax.ExternFunc(name), [argument], ty_args=[ty]))

    def shared(binding: relax.Binding) -> Iterator[relax.Binding]:
        for made in early.get(binding.var, ()):
            home = homes[made]
            yield relax.VarBinding(home, values[home])
            value = call(START_WRITE, home, relax.ObjectType())
            started[made] = relax.Var(f"{home.name}_write", value.ty)
            yield relax.VarBinding(started[made], value)
        home = homes.get(binding.var)
        if home is None:
            if binding.var not in moved:
                yield binding
            return
        like = home.ty
        ty = relax.TensorType(like.shape, like.dtype, binding.var.ty.vdevice)
        if binding.var in started:
            view = call(FINISH_WRITE, started[binding.var], ty)
        else:
            yield relax.VarBinding(home, values[home])
            view = call(WRITE, home, ty)
        if static_shape(ty) != static_shape(binding.var.ty):
            name = relax.Var(f"{binding.var.name}_shared", ty)
            yield relax.VarBinding(name, view)
            view = relax.op.reshape(name, binding.var.ty.shape)
        yield relax.VarBinding(binding.var, builder.normalize(view))

    return with_bindings(main, shared)
