"""Weights that ``main`` asks for when a kernel is about to read them.

A pass marks a constant as streamed; what runs in between sees a tensor that nobody knows the values
of. After the schedules each mark becomes a call of the runtime
(``native/csrc/weight_stream.cc``), right before the kernel that reads the constant.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, bindings_of, is_call, with_bindings
from tvm_edge.relay_passes.ir.vdevices import on_vdevice, vdevice_of, vdevices_of
from tvm_edge.relay_passes.place.label_operators import operands
from tvm_edge.runtime.devices import is_host
from tvm_edge.runtime.entry import NEXT_PART, UPLOAD_PART

__all__ = [
    "StreamWeights",
    "asks_for_part",
    "not_waiting",
    "streamed",
    "streamed_constant",
    "waits_for",
]

_MARK = "tvm_edge.streamed"


def streamed(constant: relax.Expr, device: relax.VDevice | None) -> relax.Call:
    """A constant as a value that is there when a kernel, of a device, reads it."""
    ty = constant.ty if device is None else on_vdevice(constant.ty, device)
    return relax.op.call_pure_packed(_MARK, constant, ty_args=ty)


def streamed_constant(value: relax.Expr | None) -> relax.Expr | None:
    """The constant that :func:`streamed` was given; ``None`` for any other expression."""
    return value.args[1] if value is not None and _calls(value, _MARK) else None


def asks_for_part(value: relax.Expr) -> bool:
    """Return whether an expression is what :class:`StreamWeights` makes of a mark."""
    return _calls(value, NEXT_PART, UPLOAD_PART)


def waits_for(value: relax.Expr) -> relax.Expr | None:
    """The result that a call for a part comes after, if it names one."""
    return value.args[4] if asks_for_part(value) and len(value.args) > 4 else None


def not_waiting(value: relax.Call) -> relax.Call:
    """A call for a part that comes after no kernel."""
    return relax.Call(value.op, value.args[:4], value.attrs, value.ty_args)


def _calls(value: relax.Expr, *names: str) -> bool:
    if not is_call(value, "relax.call_pure_packed"):
        return False
    function = value.args[0]
    return isinstance(function, relax.ExternFunc) and str(function.global_symbol) in names


@tvm.transform.module_pass(opt_level=0, name="StreamWeights")
class StreamWeights:
    """Ask the runtime for each streamed weight before the kernel that reads it.

    With a part goes the one that is wanted next, so that it is read meanwhile. After the last of
    a device comes the first again, of the next run. Each but the first also takes a result of the
    kernel that read the one before, so that no pass after this one changes their order.

    Runs on scheduled kernels, before ``LiftWeights``.

    Parameters
    ----------
    kind : str
        Of the target of a module on one device: ``llvm``, ``opencl``, …

    Raises
    ------
    RuntimeError
        A kernel reads two of them, or two kernels read one.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        bindings = bindings_of(mod[gvar])
        if not any(streamed_constant(binding.value) is not None for binding in bindings):
            return mod
        mod = mod.clone()
        mod[gvar] = _rewritten(mod, self._kind)
        return mod


def _rewritten(mod: tvm.IRModule, kind: str) -> relax.Function:
    main = mod["main"]
    blocks = {
        binding.var: number
        for number, block in enumerate(main.body.blocks)
        for binding in block.bindings
    }
    bindings = bindings_of(main)
    marked = {
        binding.var: constant
        for binding in bindings
        if (constant := streamed_constant(binding.value)) is not None
    }
    order = _readers(bindings, marked)
    parts: dict[str, list[relax.Var]] = {}  # by what asks for them, in the order they are read
    for var in order.values():
        parts.setdefault(_name(mod, var, kind), []).append(var)
    builder = relax.BlockBuilder()
    done: dict[str, relax.Var] = {}

    def asked(binding: relax.Binding) -> Iterator[relax.Binding]:
        if binding.var in marked:
            return
        if binding.var not in order:
            yield binding
            return
        var = order[binding.var]
        name = _name(mod, var, kind)
        place = parts[name].index(var)
        ring = (place, (place + 1) % len(parts[name]), place - 1)
        arguments = [marked[parts[name][each]] for each in ring]
        after = done.get(name)
        if after is not None and blocks[after] == blocks[binding.var]:
            arguments.append(after)
        call = relax.op.call_pure_packed(name, *arguments, ty_args=var.ty)
        yield relax.VarBinding(var, builder.normalize(call))
        yield binding
        done[name] = binding.var
        if isinstance(binding.var.ty, relax.TupleType):  # with a workspace
            first = builder.normalize(relax.TupleGetItem(binding.var, 0))
            make = type(binding.var)
            done[name] = make(f"{binding.var.name}_result", first.ty)
            blocks[done[name]] = blocks[binding.var]
            yield relax.VarBinding(done[name], first)

    return with_bindings(main, asked)


def _readers(
    bindings: list[relax.Binding], marked: dict[relax.Var, relax.Expr]
) -> dict[relax.Var, relax.Var]:
    """By the result of a kernel, in order, the streamed weight that it reads."""
    found: dict[relax.Var, relax.Var] = {}
    for binding in bindings:
        wanted = [var for var in operands(binding.value) if var in marked]
        if not wanted:
            continue
        once = len(wanted) == 1 and wanted[0] not in found.values()
        if not once or not is_call(binding.value, *KERNEL_CALLS):
            raise RuntimeError(f"{binding.var.name} reads streamed weights in another way than one")
        found[binding.var] = wanted[0]
    return found


def _name(mod: tvm.IRModule, var: relax.Var, kind: str) -> str:
    """Name of the function that gives a kernel its part."""
    device, devices = vdevice_of(var.ty), vdevices_of(mod)
    if device is None and devices:
        device = devices[0]
    if device is not None:
        kind = str(device.target.kind.name)
    return NEXT_PART if is_host(kind) else UPLOAD_PART
