"""Put copies between devices (ICPP'19 §3.1.2, the second of two passes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.vdevices import on_vdevice, set_vdevices
from tvm_edge.relay_passes.place.label_operators import Label

__all__ = ["insert_copies"]


def insert_copies(
    mod: tvm.IRModule,
    labels: Mapping[relax.Var, Label],
    parameters: Sequence[int],
    targets: Sequence[tvm.target.Target],
) -> tvm.IRModule:
    """Annotate ``main`` with virtual devices and copy each tensor that changes its device.

    Parameters
    ----------
    mod : IRModule
        Operators not legalised yet.
    labels : mapping of Var to Label
        A device for the result of every binding.
    parameters : sequence of int
        The devices of the function's parameters.
    targets : sequence of Target
        One for each device, by its number.

    Returns
    -------
    IRModule
        With one ``to_vdevice`` for each tensor and device that it goes to.
    """
    mod = mod.clone()
    devices = set_vdevices(mod, targets)
    gvar = mod.get_global_var("main")
    inserter = _Inserter(mod, mod[gvar], labels, parameters, devices)
    mod.update_func(gvar, inserter.placed())
    return mod


@mutator
class _Inserter(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        func: relax.Function,
        labels: Mapping[relax.Var, Label],
        parameters: Sequence[int],
        devices: Sequence[relax.VDevice],
    ) -> None:
        super().__init__(mod)
        self._func = func
        self._devices = devices
        self._place = {var: label.device for var, label in labels.items()}
        self._place.update(zip(func.params, parameters, strict=True))
        self._tuples: dict[relax.Var, relax.Tuple] = {}
        # By tensor, which may be an item of a tuple, and device.
        self._copies: dict[tuple[relax.Var, int | None, int], relax.Var] = {}
        self._device = 0

    def placed(self) -> relax.Function:
        func = self._func
        params = []
        for param in func.params:
            ty = on_vdevice(param.ty, self._devices[self._place[param]])
            params.append(relax.Var(param.name, ty))
            self.set_var_remap(param, params[-1])
        body = self.visit_expr(func.body)
        return relax.Function(params, body, None, func.is_pure, func.attrs)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        self._copies.clear()  # a copy made in a dataflow block is not visible outside of it
        return super().visit_binding_block_(block)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        self._copies.clear()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if isinstance(binding.value, relax.Tuple):
            self._tuples[binding.var] = binding.value
        self._device = self._place.get(binding.var, 0)
        super().visit_var_binding_(binding)

    def visit_if_(self, op: relax.If) -> relax.Expr:
        device, outside = self._device, self._copies
        condition = self.visit_expr(op.cond)
        branches = []
        for branch in (op.true_branch, op.false_branch):
            self._copies = {}  # a branch's are its own
            branches.append(self._branch(branch, device))
        self._copies = outside
        return relax.If(condition, *branches)

    def _branch(self, branch: relax.SeqExpr, device: int) -> relax.SeqExpr:
        """A branch whose result is on the device of the ``If``."""
        blocks = [self.visit_binding_block(block) for block in branch.blocks]
        self._copies.clear()
        self.builder_._begin_binding_block()
        body = self._moved(branch.body, device)
        if isinstance(body, relax.Tuple):
            body = self.builder_.emit(body)
        blocks.append(self.builder_._end_block())
        return self.builder_.normalize(relax.SeqExpr(blocks, body))

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        ty = on_vdevice(binding.ty, self._devices[self._place[binding.var]])
        value = self.visit_expr(binding.value)
        var = self.with_type(self.visit_var_def(binding.var), ty)
        self.set_var_remap(binding.var, var)
        self.builder_.emit_normalized(relax.MatchCast(var, value, ty))

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        device = self._device
        args = [self._moved(arg, device) for arg in op.args]
        # Kernels that the frontend wrote: nothing infers the device of their results.
        types = [on_vdevice(ty, self._devices[device]) for ty in op.ty_args]
        return self.builder_.normalize(relax.Call(op.op, args, op.attrs, types))

    def _moved(self, arg: relax.Expr, device: int) -> relax.Expr:
        """An argument of a call, on the device of the call."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._moved(field, device) for field in arg.fields])
        if not isinstance(arg, relax.Var):
            return self.visit_expr(arg)
        if arg in self._tuples:
            return self._moved(self._tuples[arg], device)
        if self._place.get(arg, 0) == device:
            return self.visit_expr(arg)
        if isinstance(arg.ty, relax.TupleType):
            # `to_vdevice` takes tensors only.
            return relax.Tuple([self._copied(arg, i, device) for i in range(len(arg.ty.fields))])
        if not isinstance(arg.ty, relax.TensorType):
            return self.visit_expr(arg)  # shapes live on the host
        return self._copied(arg, None, device)

    def _copied(self, arg: relax.Var, index: int | None, device: int) -> relax.Var:
        """A tensor, or item `index` of a tuple, on another device; copied when first asked for."""
        key = (arg, index, device)
        if key not in self._copies:
            tensor = self.visit_expr(arg)
            if index is not None:
                tensor = self.builder_.emit(relax.TupleGetItem(tensor, index))
            copy = relax.op.to_vdevice(tensor, self._devices[device])
            self._copies[key] = self.builder_.emit(copy, f"{arg.name}_copy")
        return self._copies[key]
