"""Tensors that cross between a GPU and the CPU without a copy, where both share memory.

To the CPU: its kernels read a view of the GPU's tensor, which kernels of the GPU may read too. The
view extends the life of what it views, so the memory planner gives its storage to nobody else.

To the GPU: a kernel of the CPU writes where the GPU will read. The tensor is the GPU's from the
beginning, and the CPU's kernels see it through a view.

What a device can do is found out when the model runs: where its memory is its own after all, or
must be mapped in another way, the functions called here copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.aliases import Held, holds, reached
from tvm_edge.relay_passes.expressions import is_call, static_shape, with_bindings
from tvm_edge.relay_passes.vdevices import is_same, vdevice_of, vdevices_of

__all__ = ["HAND_OVER", "READ", "WRITE", "WriteOnHost", "shared_crossings"]

# The runtime's (tvm_edge/opencl/csrc/device_api.h). They run between recorded kernels: TVM's pass
# for CUDA graphs takes in calls of functions by other names than vm.builtin's.
READ = "vm.builtin.tvm_edge.read_on_host"
WRITE = "vm.builtin.tvm_edge.write_on_host"
HAND_OVER = "vm.builtin.tvm_edge.hand_over"

_KERNELS = ("relax.call_tir", "relax.call_tir_inplace")


def shared_crossings(mod: tvm.IRModule) -> dict[relax.Var, str]:
    """The crossings of ``main`` that need no copy.

    Left to copies are results of the model, which are the caller's to write; what a kernel writes
    in place later on; and to the GPU all but tensors of known shape that a kernel of the CPU makes.

    Parameters
    ----------
    mod : IRModule
        Two devices; operators are kernels, and crossings ``to_vdevice``.

    Returns
    -------
    dict of Var to str
        For the variable of a crossing :data:`READ` or :data:`HAND_OVER`.
    """
    found: dict[relax.Var, str] = {}
    lives = _Lives(mod["main"])
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
            if sources and var not in lives.results:
                found[var] = READ
        elif len(sources) == 1:
            (source,) = sources
            if source in lives.made and not sources & (lives.results | written):
                shape = static_shape(value.ty)
                if shape is not None and math.prod(shape) == math.prod(lives.made[source]):
                    written.add(source)
                    found[var] = HAND_OVER
    return found


class _Lives:
    """What each variable of a function may be, and what becomes of it.

    Attributes
    ----------
    bindings : list of Binding
    held : dict of Var to Held
        Tensors by the variables that stand for them.
    made : dict of Var to tuple of int
        The shapes of those that a kernel makes, where they are known.
    overwritten : dict of Var to int
        The last binding that writes a tensor in place.
    results : frozenset of Var
        The tensors among the function's results.
    """

    def __init__(self, main: relax.Function) -> None:
        self.bindings = [binding for block in main.body.blocks for binding in block.bindings]
        self.held: dict[relax.Var, Held] = {param: frozenset([param]) for param in main.params}
        self.made: dict[relax.Var, tuple[int, ...]] = {}
        self.overwritten: dict[relax.Var, int] = {}
        for position, binding in enumerate(self.bindings):
            var, value = binding.var, binding.value
            if is_call(value, *_KERNELS):
                self.held[var] = self._written(var, value, position)
            elif is_call(value, "relax.to_vdevice"):
                self.held[var] = frozenset([var])
            else:
                self.held[var] = holds(value, self.held)
        self.results = reached(main.body.body, self.held)

    def _written(self, var: relax.Var, call: relax.Call, position: int) -> Held:
        """What a kernel's results hold."""
        whole = isinstance(var.ty, relax.TensorType)
        types = [var.ty] if whole else list(var.ty.fields)
        places = [-1] * len(types)
        if is_call(call, "relax.call_tir_inplace"):
            places = [int(place) for place in call.attrs.inplace_indices]
        fields: list[Held] = []
        for place, ty in zip(places, types, strict=True):
            if place >= 0:
                over = reached(call.args[1].fields[place], self.held)
                self.overwritten.update(dict.fromkeys(over, position))
                fields.append(over)
                continue
            tensor = var if whole else relax.Var(var.name, ty)
            shape = static_shape(ty)
            if shape is not None:
                self.made[tensor] = shape
            fields.append(frozenset([tensor]))
        return fields[0] if whole else tuple(fields)


@tvm.transform.module_pass(opt_level=0, name="WriteOnHost")
class WriteOnHost:
    """Have kernels of the CPU write into the tensors that are handed over to the GPU.

    Runs behind ``CallTIRRewrite`` and in front of the memory planner. A tensor whose allocation it
    does not find is copied when it is handed over.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        values = {binding.var: binding.value for binding in bindings}
        homes: dict[relax.Var, relax.Var] = {}  # by the CPU's tensor the GPU's
        for binding in bindings:
            if _calls(binding.value, HAND_OVER):
                source, target = binding.value.args
                made = _allocation(source, values)
                if made is not None and made not in homes and _is_planned(values.get(target)):
                    homes[made] = target
        if not homes:
            return mod
        mod = mod.clone()
        mod[gvar] = _rewritten(main, homes, values)
        return mod


def _calls(value: relax.Expr, name: str) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.ExternFunc)
        and str(value.op.global_symbol) == name
    )


def _is_planned(value: relax.Expr | None) -> bool:
    """Whether this is an allocation that can be made anywhere."""
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


def _rewritten(
    main: relax.Function,
    homes: dict[relax.Var, relax.Var],
    values: dict[relax.Var, relax.Expr],
) -> relax.Function:
    builder = relax.BlockBuilder()
    moved = frozenset(homes.values())

    def shared(binding: relax.Binding) -> Iterator[relax.Binding]:
        home = homes.get(binding.var)
        if home is None:
            if binding.var not in moved:
                yield binding
            return
        yield relax.VarBinding(home, values[home])
        like = home.ty
        ty = relax.TensorType(like.shape, like.dtype, binding.var.ty.vdevice)
        view = relax.Call(relax.ExternFunc(WRITE), [home], ty_args=[ty])
        if static_shape(ty) != static_shape(binding.var.ty):
            name = relax.Var(f"{binding.var.name}_shared", ty)
            yield relax.VarBinding(name, builder.normalize(view))
            view = relax.op.reshape(name, binding.var.ty.shape)
        yield relax.VarBinding(binding.var, builder.normalize(view))

    return with_bindings(main, shared)
