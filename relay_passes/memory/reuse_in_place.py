"""Element-wise results in place of an operand that nobody needs any more.

A residual addition at the end of a convolution reads an image and writes one of the same shape.
Written over the operand, its lines are in the cache already; a result of its own would first be
fetched from memory to be overwritten.

Runs on scheduled kernels.
"""

from __future__ import annotations

from collections import Counter

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.dependences import AREAS
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call, lengths_of, static_shape
from tvm_edge.relay_passes.place.label_operators import operands
from tvm_edge.schedules.cpu.overlap import TWICE

__all__ = ["ReuseInPlace"]


@tvm.transform.module_pass(opt_level=0, name="ReuseInPlace")
class ReuseInPlace:
    """Have kernels overwrite an operand that they are the last to read, element by element.

    Parameters
    ----------
    open_too : bool
        Also results whose lengths only the run tells.
    """

    def __init__(self, open_too: bool = False) -> None:
        self._open_too = open_too

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        found = _candidates(mod, self._open_too)
        return _Rewriter(mod, found).rewritten() if found else mod


def _candidates(mod: tvm.IRModule, open_too: bool) -> dict[relax.Var, int]:
    """For results that can replace an operand the position of that operand."""
    main = mod["main"]
    bindings = bindings_of(main)
    fresh = {
        binding.var
        for binding in bindings
        if is_call(binding.value, "relax.call_tir")
        and isinstance(binding.var, relax.DataflowVar)
        and (lengths_of if open_too else static_shape)(binding.var.ty) is not None
    }
    left: Counter[relax.Var] = Counter()  # readers to come
    for value in [*(binding.value for binding in bindings), main.body.body]:
        kernel = is_call(value, "relax.call_tir")
        for var in dict.fromkeys(operands(value)):
            left[var] += 1
            if not kernel:  # a view, or a tensor that others share already
                fresh.discard(var)
    found = {}
    for binding in bindings:
        value = binding.value
        for var in dict.fromkeys(operands(value)):
            left[var] -= 1
        if binding.var not in fresh:
            continue
        for position, arg in enumerate(value.args[1].fields):
            if (
                arg not in fresh
                or left[arg]
                or not tvm_ffi.structural_equal(arg.ty, binding.var.ty)
            ):
                continue
            if list(value.args[1].fields).count(arg) == 1 and _same_elements(
                mod[value.args[0]], position
            ):
                found[binding.var] = position
                break
    return found


def _same_elements(func: tirx.PrimFunc, position: int) -> bool:
    """Return whether a kernel reads an operand only where it writes the element at that index.

    Once: where it calculates an element again it would read its own result.
    """
    if func.attrs is not None and TWICE in func.attrs:
        return False
    operand, output = func.params[position], func.params[-1]
    good, loads = 0, 0

    def load(node: ir.TensorLoad) -> None:
        nonlocal loads
        loads += node.source.same_as(operand)

    def store(node: tirx.BufferStore) -> None:
        nonlocal good
        if not node.buffer.same_as(output):
            return

        def own(inner: ir.TensorLoad) -> None:
            nonlocal good
            if inner.source.same_as(operand):
                good += all(map(tvm_ffi.structural_equal, inner.indices, node.indices))

        tvm_ffi.structural_walk(node.value, (ir.TensorLoad, own))

    tvm_ffi.structural_walk(func.body, (ir.TensorLoad, load))
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, store))
    return 0 < loads == good


def _over(func: tirx.PrimFunc, position: int) -> tirx.PrimFunc:
    """The kernel without the operand: it reads what it overwrites."""
    operand, output = func.params[position], func.params[-1]

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return output[tuple(node.indices)] if node.source.same_as(operand) else node

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if not node.source.same_as(operand):
            return node
        return tirx.BufferRegion(output, node.region)

    body = tvm_ffi.structural_map(func.body, ((ir.TensorLoad, load), (ir.TensorRegion, region)))
    params = [param for i, param in enumerate(func.params) if i != position]
    made = tirx.PrimFunc(params, body).with_attrs(func.attrs)
    return made.without_attr(AREAS)  # parameters have other numbers now


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, found: dict[relax.Var, int]) -> None:
        super().__init__(mod)
        self._mod = mod
        self._found = found
        self._kernels: dict[tuple[str, int], ir.GlobalVar] = {}

    def rewritten(self) -> tvm.IRModule:
        """The module; asked for here, as it is gone with the mutator."""
        gvar = self._mod.get_global_var("main")
        self.builder_.update_func(gvar, self.visit_expr(self._mod["main"]))
        return self.builder_.get()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        position = self._found.get(binding.var)
        if position is None:
            super().visit_var_binding_(binding)
            return
        value = binding.value
        args = [self.visit_expr(arg) for arg in value.args[1].fields]
        over = args.pop(position)
        key = (str(value.args[0].name_hint), position)
        if key not in self._kernels:
            func = _over(self._mod[value.args[0]], position)
            self._kernels[key] = self.builder_.add_func(func, f"{key[0]}_in_place")
        call = relax.op.call_tir_inplace(
            self._kernels[key], [*args, over], len(args), binding.var.ty
        )
        var = relax.DataflowVar(binding.var.name, binding.var.ty, binding.var.span)
        self.builder_.emit_normalized(relax.VarBinding(var, self.builder_.normalize(call)))
        self.set_var_remap(binding.var, var)
