"""Tensors of a recording share parts of memory that its caller keeps.

A recording names addresses: its tensors stay where they are for as long as it lives. How large they
are depends on the lengths of the run, so ``main`` takes the memory as a parameter, and a second
function tells how much a run of some shapes needs. :mod:`tvm_edge.runtime.shape_recordings` has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

from tvm_edge.relay_passes.ir.expressions import with_bindings
from tvm_edge.relay_passes.memory.plan_arena import bytes_of, input_lengths, largest
from tvm_edge.relay_passes.memory.shared_storage import Storage, allocations, shared
from tvm_edge.runtime.entry import part_sizes
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.typical import typical

__all__ = ["PlanParts"]

_CAPTURED = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="PlanParts")
class PlanParts:
    """Take the memory of the first device's tensors as parameters; runs after ``CallTIRRewrite``.

    The parts come before the weights, which are the last parameter. ``main_part_sizes`` takes the
    inputs and returns the bytes of each part. Lengths that a kernel finds out, results,
    and what branches allocate are left to the pool. ``RewriteCUDAGraph`` is told that a recording
    may depend on the lengths of the inputs.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        known = input_lengths(main)

        def nbytes(call: relax.Call) -> int | None:
            is_planned = known.issuperset(nodes_in(call.args[0], tirx.Var))
            return typical(bytes_of(call)) if is_planned else None

        tensors = allocations(main, nbytes)
        storages = shared(t for t in tensors if t.device == 0 and t.scope == "global")
        sizes = [largest(storage.tensors) for storage in storages]
        mod = mod.clone()
        mod[gvar] = _in_parts(main, storages).with_attr(
            _CAPTURED, sorted({length.name for length in known})
        )
        name = part_sizes(gvar.name_hint)
        mod.update_func(tvm.ir.GlobalVar(name), _sizes_function(main, sizes, name))
        return mod


def _sizes_function(main: relax.Function, sizes: list[tirx.Expr], name: str) -> relax.Function:
    """A function from the inputs of ``main`` to a shape of these sizes."""
    shape = relax.ShapeExpr(sizes)
    block = relax.BindingBlock([relax.VarBinding(relax.Var("sizes", shape.ty), shape)])
    body = relax.SeqExpr([block], block.bindings[0].var)
    func = relax.Function(main.params[:-1], body, shape.ty, is_pure=True)
    return copy_with_new_vars(func).with_attr("global_symbol", name)


def _in_parts(main: relax.Function, storages: list[Storage]) -> relax.Function:
    """The function with its tensors in memory that it is given."""
    builder = relax.BlockBuilder()
    # Of any size: what is large enough for a larger shape serves as it is.
    lengths = [tirx.Var(f"part{number}", "int64") for number in range(len(storages))]
    parts = [relax.Var(each.name, relax.TensorType([each], "uint8")) for each in lengths]
    places = {
        tensor.var: part
        for part, storage in zip(parts, storages, strict=True)
        for tensor in storage.tensors
    }

    def allocated(binding: relax.Binding) -> Iterator[relax.Binding]:
        if binding.var not in places:
            yield binding
            return
        shape, dtype, *_ = binding.value.args
        view = relax.op.memory.view(places[binding.var], shape, dtype)
        yield relax.VarBinding(binding.var, builder.normalize(view))

    *inputs, weights = main.params
    body = with_bindings(main, allocated).body
    params = [*inputs, *parts, weights]
    return relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs, main.span)
