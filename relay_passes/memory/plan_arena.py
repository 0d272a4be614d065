"""Tensors whose lengths differ from run to run share the parts of one arena.

Storages are shared out for typical lengths; each is as large as the largest of its tensors in the
run. All of a run are the parts of one block of memory, which later runs use again, whatever their
shapes (``tvm_edge/native/csrc/arena.h``): the virtual machine's pool has blocks for exactly the
sizes that it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import mul

import tvm
import tvm_ffi
from tvm import relax, sym, tirx

from tvm_edge.relay_passes.ir.expressions import static_shape, with_bindings
from tvm_edge.relay_passes.memory.shared_storage import Allocated, Storage, allocations, shared
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.typical import typical

__all__ = ["PlanArena", "bytes_of", "input_lengths", "largest"]

_VIEW = "runtime.TVMTensorCreateView"
_PARTS = "vm.builtin.tvm_edge.arena_parts"


@tvm.transform.module_pass(opt_level=0, name="PlanArena")
class PlanArena:
    """Allocate tensors of open shape in ``main`` from an arena; runs after ``CallTIRRewrite``.

    Those whose lengths are known when a run begins. Lengths that a kernel finds out, results, and
    what branches and loops allocate are left to the pool.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        known = input_lengths(main)

        def nbytes(call: relax.Call) -> int | None:
            lengths = nodes_in(call.args[0], tirx.Var)
            is_planned = static_shape(call.ty) is None and known.issuperset(lengths)
            return typical(bytes_of(call)) if is_planned else None

        storages = shared(allocations(main, nbytes))
        if not storages:
            return mod
        mod = mod.clone()
        mod[gvar] = _rewritten(main, storages)
        return mod


def input_lengths(main: relax.Function) -> frozenset[tirx.Var]:
    """Return the lengths that the parameters have."""
    shapes = (param.ty.shape for param in main.params if isinstance(param.ty, relax.TensorType))
    return frozenset(
        length
        for shape in shapes
        if shape is not None
        for length in shape.values
        if isinstance(length, tirx.Var)
    )


def bytes_of(call: relax.Call) -> tirx.Expr:
    """Return the bytes of the tensor that ``R.builtin.alloc_tensor`` makes."""
    itemsize = int(tvm.DataType(call.ty.dtype).itemsize)
    return reduce(mul, call.args[0].values, tirx.const(itemsize, "int64"))


def largest(tensors: list[Allocated]) -> tirx.Expr:
    """Return the bytes of the largest of these tensors."""
    simplify = sym.Analyzer().simplify
    sizes: list[tirx.Expr] = []
    for tensor in tensors:
        size = simplify(bytes_of(tensor.call))
        if not any(tvm_ffi.structural_equal(size, other) for other in sizes):
            sizes.append(size)
    return reduce(tirx.max, sizes)


def _rewritten(main: relax.Function, storages: list[Storage]) -> relax.Function:
    """Return the function with its tensors in an arena, taken before the first of them."""
    builder = relax.BlockBuilder()
    places = {
        tensor.var: number for number, storage in enumerate(storages) for tensor in storage.tensors
    }
    sizes = [largest(storage.tensors) for storage in storages]
    parts: list[relax.Var] = []

    def arena() -> Iterator[relax.Binding]:
        ty = relax.TupleType([relax.TensorType([size], "uint8") for size in sizes])
        call = relax.Call(relax.ExternFunc(_PARTS), [relax.ShapeExpr(sizes)], ty_args=[ty])
        whole = relax.Var("arena", ty)
        yield relax.VarBinding(whole, builder.normalize(call))
        for number in range(len(sizes)):
            part = builder.normalize(relax.TupleGetItem(whole, number))
            parts.append(relax.Var("part", part.ty))
            yield relax.VarBinding(parts[-1], part)

    def allocated(binding: relax.Binding) -> Iterator[relax.Binding]:
        if binding.var not in places:
            yield binding
            return
        if not parts:
            yield from arena()
        shape, dtype, *_ = binding.value.args
        # Not the operator: TVM proves in every pass that its tensor is as large as the part.
        given = [parts[places[binding.var]], shape, dtype, relax.prim_value(0)]
        view = relax.Call(relax.ExternFunc(_VIEW), given, ty_args=[binding.var.ty])
        yield relax.VarBinding(binding.var, builder.normalize(view))

    return with_bindings(main, allocated)
