"""Concatenations without copies: producers write into the result.

The parts of a concatenation along blocks of channels lie one behind the other in memory (batch 1).
The first kernel that writes a part allocates the whole result, later ones write into it in place,
each at the offset of its part. A concatenation whose result begins another one's (DenseNet) shares
its memory, so that features are written once however often they are passed on.

Runs on scheduled kernels: a rule need not know where its output goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.expressions import is_call, static_shape
from tvm_edge.relay_passes.fallback import operands

__all__ = ["CONCAT", "concat_in_place"]

CONCAT = "tvm_edge.concat"
"""Attribute of kernels that concatenate along axis 1 and do nothing else."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies: in which concatenation's result, from which block on."""

    root: relax.Var
    offset: int


def concat_in_place(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[int]]:
    """Have the producers of concatenated images write into the concatenation's result.

    Parameters
    ----------
    mod : tvm.IRModule
        With fused and scheduled kernels.

    Returns
    -------
    tvm.IRModule
    list of int
        For each kernel call which one it was in the module given, counted from 0.
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    producer = {binding.var: binding.value for binding in bindings}
    readers: Counter[relax.Var] = Counter()
    others: Counter[relax.Var] = Counter()  # readers that are not kernels
    for value in [*(binding.value for binding in bindings), main.body.body]:
        for var in dict.fromkeys(operands(value)):
            readers[var] += 1
            others[var] += not is_call(value, "relax.call_tir")
    plan = _Plan(mod, producer, readers, others)
    for binding in reversed(bindings):
        plan.add(binding.var)
    if plan.gone:
        mod = _Rewriter(mod, plan).rewritten()
    calls = [b.var for b in bindings if is_call(b.value, "relax.call_tir")]
    return mod, [i for i, var in enumerate(calls) if var not in plan.gone]


class _Plan:
    """Which tensors become parts of others.

    Attributes
    ----------
    places : dict of relax.Var to _Place
        The tensors that lie in a concatenation's result, the result itself included.
    gone : dict of relax.Var to list of relax.Var
        The concatenations that disappear, with their parts.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        producer: dict[relax.Var, relax.Expr],
        readers: Counter[relax.Var],
        others: Counter[relax.Var],
    ) -> None:
        self._mod = mod
        self._producer = producer
        self._readers = readers
        self._others = others
        self.places: dict[relax.Var, _Place] = {}
        self.gone: dict[relax.Var, list[relax.Var]] = {}

    def add(self, var: relax.Var) -> None:
        """Plan for the concatenation that `var` is the result of, if it is one.

        Later concatenations first: one that begins a later one's result is part of that already.
        """
        parts = self._parts(var)
        shape = static_shape(var.ty)
        if parts is None or shape is None or shape[0] != 1:
            return
        if not isinstance(var, relax.DataflowVar):
            return  # an output of the model
        inside = self.places.get(var)
        if inside is not None and self._readers[var] > 1 and inside.offset:
            return  # its other readers would have to know the offset
        root = _Place(var, 0) if inside is None else inside
        offset = root.offset
        found: dict[relax.Var, _Place] = {}
        for position, part in enumerate(parts):
            if not self._movable(part, first=position == 0 and offset == 0) or part in found:
                return
            found[part] = _Place(root.root, offset)
            blocks = static_shape(part.ty)
            assert blocks is not None
            offset += blocks[1]
        self.places.update(found)
        self.places[var] = root
        self.gone[var] = parts

    def _parts(self, var: relax.Var) -> list[relax.Var] | None:
        """What is concatenated."""
        value = self._producer[var]
        if not is_call(value, "relax.call_tir"):
            return None
        func = self._mod[value.args[0]]
        if func.attrs is None or not func.attrs.get(CONCAT, False):
            return None
        return [arg for arg in value.args[1].fields if isinstance(arg, relax.Var)]

    def _movable(self, part: relax.Var, *, first: bool) -> bool:
        """Whether a tensor can lie in another; at its beginning other kernels may read it too."""
        value = self._producer.get(part)
        if part in self.places or not is_call(value, "relax.call_tir"):
            return False
        if not isinstance(part.ty, relax.TensorType) or static_shape(part.ty) is None:
            return False
        return not self._others[part] and (self._readers[part] == 1 or first)


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, plan: _Plan) -> None:
        super().__init__(mod)
        self._mod = mod
        self._plan = plan
        self._latest: dict[relax.Var, relax.Var] = {}  # the last state of each result
        self._renamed: dict[relax.Var, relax.Var] = {}
        self._kernels: dict[tuple[str, bool, tuple[int, ...]], ir.GlobalVar] = {}

    def rewritten(self) -> tvm.IRModule:
        """The module with its parts in place; asked for here, as it is gone with the mutator."""
        self.builder_.update_func(
            self._mod.get_global_var("main"), self.visit_expr(self._mod["main"])
        )
        return self.builder_.get()

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self._renamed[op] if op in self._renamed else super().visit_dataflow_var_(op)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        place = self._plan.places.get(var)
        if var in self._plan.gone:
            assert place is not None
            self._renamed[var] = self._latest[place.root]
            return
        if not is_call(value, "relax.call_tir"):
            super().visit_var_binding_(binding)
            return
        given = list(value.args[1].fields)
        args = [self.visit_expr(arg) for arg in given]
        wide = tuple(
            i for i, arg in enumerate(given) if static_shape(arg.ty) != static_shape(args[i].ty)
        )
        if place is None and not wide:
            super().visit_var_binding_(binding)
            return
        name = self._kernel(value.args[0], place is not None, wide)
        if place is None:
            call = relax.call_tir(name, args, value.ty_args[0])
        else:
            args.append(relax.prim_value(place.offset))
            latest = self._latest.get(place.root)
            if latest is None:
                call = relax.call_tir(name, args, place.root.ty)
            else:
                call = relax.op.call_tir_inplace(name, [*args, latest], len(args), place.root.ty)
        call = self.builder_.normalize(call)
        # ``emit`` might append a digit to the name.
        make = relax.DataflowVar if isinstance(var, relax.DataflowVar) else relax.Var
        own = make(var.name, call.ty)
        self.builder_.emit_normalized(relax.VarBinding(own, call))
        if place is None:
            self.set_var_remap(var, own)
        else:
            self._renamed[var] = self._latest[place.root] = own

    def _kernel(self, name: ir.GlobalVar, writes: bool, wide: tuple[int, ...]) -> ir.GlobalVar:
        key = (str(name.name_hint), writes, wide)
        if key not in self._kernels:
            func = _within(self._mod[name], writes, wide)
            self._kernels[key] = self.builder_.add_func(func, f"{name.name_hint}_in_place")
        return self._kernels[key]


def _within(func: tirx.PrimFunc, writes: bool, wide: tuple[int, ...]) -> tirx.PrimFunc:
    """A kernel whose tensors are parts of larger ones along axis 1.

    Parameters
    ----------
    func : PrimFunc
        ``(*inputs, output)``.
    writes : bool
        Whether the output is such a part. Its offset is a parameter before it.
    wide : tuple of int
        The inputs that are; they begin the larger tensor.
    """
    *params, output = func.params
    offset = tirx.Var("offset", "int64")
    larger: dict[tirx.Var, tirx.Var] = {}
    for position, old in enumerate((*params, output)):
        if position in wide or (writes and old.same_as(output)):
            shape = [old.shape[0], tirx.Var(f"all_{old.name}", "int64"), *old.shape[2:]]
            larger[old] = tirx.decl_buffer(shape, old.dtype, name=old.name)

    def moved(buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        found = list(indices)
        if writes and buffer.same_as(output):
            found[1] = found[1] + tirx.Cast(found[1].ty.dtype, offset)
        return found

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in larger:
            return node
        return tirx.BufferStore(larger[node.buffer], node.value, moved(node.buffer, node.indices))

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        if node.source not in larger:
            return node
        return larger[node.source][tuple(moved(node.source, node.indices))]

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if node.source not in larger:
            return node
        starts = moved(node.source, [r.min for r in node.region])
        ranges = [
            ir.Range.from_min_extent(start, r.extent)
            for start, r in zip(starts, node.region, strict=True)
        ]
        return tirx.BufferRegion(larger[node.source], ranges)

    body = tvm_ffi.structural_map(
        func.body,
        ((tirx.BufferStore, store), (ir.TensorLoad, load), (ir.TensorRegion, region)),
    )
    own = [larger.get(param, param) for param in params]
    result = [offset, larger[output]] if writes else [output]
    return tirx.PrimFunc([*own, *result], body).with_attrs(func.attrs)
