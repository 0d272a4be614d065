"""Concatenations without copies: producers write into the result.

The parts of a concatenation along channel blocks lie one after the other in memory (batch 1).
The first kernel that writes a part allocates the whole result, later ones write into it in place,
each at the offset of its part. A concatenation whose result begins another one's (DenseNet) shares
its memory, so that features are written once however often they are passed on.

On the cores of a CPU it runs on scheduled kernels, which are told the offset when they are called:
a kernel serves all its places. On a GPU it runs before there are schedules, with offsets that are
known: vectors are aligned and indices constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops.movement import CONCAT
from tvm_edge.relay_passes.ir.dependences import AREAS
from tvm_edge.relay_passes.ir.expressions import all_bindings, bindings_of, is_call, static_shape
from tvm_edge.relay_passes.place.label_operators import operands

__all__ = ["concat_in_place"]

_VECTOR_BYTES = 16


@dataclass(frozen=True)
class _Place:
    """Place of a tensor in a concatenation's result, by its first block."""

    root: relax.Var
    offset: int


def concat_in_place(mod: tvm.IRModule, *, specialise: bool = False) -> tvm.IRModule:
    """Have the producers of concatenated images write into the concatenation's result.

    Parameters
    ----------
    mod : tvm.IRModule
        With fused kernels.
    specialise : bool
        A kernel for each offset, instead of kernels that take the offset as a parameter. Kernels
        that have no schedule yet need this. Parts may then have other readers wherever they lie.
    """
    main = mod["main"]
    bindings = bindings_of(main)
    everywhere = list(all_bindings(main.body))
    producer = {binding.var: binding.value for binding in bindings}
    readers: Counter[relax.Var] = Counter()
    others: Counter[relax.Var] = Counter()  # readers that are not kernels
    for value in [*(binding.value for binding in everywhere), main.body.body]:
        for var in dict.fromkeys(operands(value)):
            readers[var] += 1
            others[var] += not is_call(value, "relax.call_tir")
    plan = _Plan(mod, producer, readers, others, specialise)
    for binding in reversed(bindings):
        plan.add(binding.var)
    return _Rewriter(mod, plan, specialise).rewritten() if plan.gone else mod


class _Plan:
    """The tensors that become parts of others.

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
        specialise: bool,
    ) -> None:
        self._mod = mod
        self._specialise = specialise
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
        if inside is not None and self._readers[var] > 1 and inside.offset and not self._specialise:
            return  # its other readers would have to know the offset
        root = _Place(var, 0) if inside is None else inside
        offset = root.offset
        found: dict[relax.Var, _Place] = {}
        for position, part in enumerate(parts):
            if not self._movable(part, first=position == 0 and offset == 0) or part in found:
                return
            if self._specialise and not _aligned(part.ty, offset):
                return
            found[part] = _Place(root.root, offset)
            blocks = static_shape(part.ty)
            assert blocks is not None
            offset += blocks[1]
        self.places.update(found)
        self.places[var] = root
        self.gone[var] = parts

    def _parts(self, var: relax.Var) -> list[relax.Var] | None:
        """The tensors that are concatenated."""
        value = self._producer[var]
        if not is_call(value, "relax.call_tir"):
            return None
        func = self._mod[value.args[0]]
        if func.attrs is None or not func.attrs.get(CONCAT, False):
            return None
        return [arg for arg in value.args[1].fields if isinstance(arg, relax.Var)]

    def _movable(self, part: relax.Var, *, first: bool) -> bool:
        """Return whether a tensor can lie in another; at its beginning others may read it too."""
        value = self._producer.get(part)
        if part in self.places or not is_call(value, "relax.call_tir"):
            return False
        if not isinstance(part.ty, relax.TensorType) or static_shape(part.ty) is None:
            return False
        known = first or self._specialise
        return not self._others[part] and (self._readers[part] == 1 or known)


def _aligned(part: relax.TensorType, offset: int) -> bool:
    """Return whether vectors of a part at `offset` are as aligned as in a tensor of its own."""
    shape = static_shape(part)
    assert shape is not None
    size = np.dtype(str(part.dtype)).itemsize
    return offset * prod(shape[2:]) * size % _VECTOR_BYTES == 0


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, plan: _Plan, specialise: bool) -> None:
        super().__init__(mod)
        self._mod = mod
        self._plan = plan
        self._specialise = specialise
        self._latest: dict[relax.Var, relax.Var] = {}  # the last state of each result
        self._renamed: dict[relax.Var, relax.Var] = {}
        self._kernels: dict[Any, ir.GlobalVar] = {}

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
        parts = {
            i: found
            for i, arg in enumerate(given)
            if (found := self._plan.places.get(arg)) is not None
            and static_shape(arg.ty) != static_shape(args[i].ty)
        }
        if place is not None:
            parts[len(given)] = place
        if not parts:
            super().visit_var_binding_(binding)
            return
        name = self._kernel(value.args[0], parts)
        if place is None:
            call = relax.call_tir(name, args, value.ty_args[0])
        else:
            if not self._specialise:
                args.append(relax.prim_value(place.offset))
            latest = self._latest.get(place.root)
            if latest is None:
                call = relax.call_tir(name, args, place.root.ty)
            else:
                call = relax.op.call_tir_inplace(name, [*args, latest], len(args), place.root.ty)
        call = self.builder_.normalize(call)
        # ``emit`` might append a digit to the name.
        make = relax.DataflowVar if isinstance(var, relax.DataflowVar) else relax.Var
        own = make(var.name, call.ty, var.span)
        self.builder_.emit_normalized(relax.VarBinding(own, call))
        if place is None:
            self.set_var_remap(var, own)
        else:
            self._renamed[var] = self._latest[place.root] = own

    def _kernel(self, name: ir.GlobalVar, parts: Mapping[int, _Place]) -> ir.GlobalVar:
        """The kernel `name` for parameters that are parts of larger tensors."""
        func = self._mod[name]
        areas = {}
        for i, place in parts.items():
            if self._specialise:
                whole = static_shape(place.root.ty)
                assert whole is not None
                areas[i] = _Area(place.offset, whole[1])
            else:
                # Parts that are read from begin the larger tensor.
                written = i == len(func.params) - 1
                offset = tirx.Var("offset", "int64") if written else 0
                areas[i] = _Area(offset, tirx.Var(f"all{i}", "int64"))
        key = (name, *(areas.items() if self._specialise else areas))
        if key not in self._kernels:
            self._kernels[key] = self.builder_.add_func(
                _within(func, areas), f"{name.name_hint}_in_place"
            )
        return self._kernels[key]


@dataclass(frozen=True)
class _Area:
    """Begin of a part along axis 1 of a larger tensor, and the length of that axis."""

    offset: int | tirx.Var
    size: int | tirx.Var


def _within(func: tirx.PrimFunc, areas: Mapping[int, _Area]) -> tirx.PrimFunc:
    """A kernel whose tensors are parts of larger ones along axis 1.

    Parameters
    ----------
    func : PrimFunc
        ``(*inputs, output)``.
    areas : mapping of int to _Area
        By the position of the parameter. An output's offset that is a variable becomes a parameter
        before it.
    """
    old = list(func.params)
    larger: dict[tirx.Var, tirx.Var] = {}
    offsets: dict[tirx.Var, int | tirx.Var] = {}
    for position, area in areas.items():
        param = old[position]
        shape = [param.shape[0], area.size, *param.shape[2:]]
        larger[param] = tirx.decl_buffer(shape, param.dtype, name=param.name)
        offsets[param] = area.offset

    def moved(buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        found = list(indices)
        offset = offsets[buffer]
        if isinstance(offset, int):
            found[1] = found[1] + tirx.const(offset, found[1].ty.dtype) if offset else found[1]
        else:
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
    *inputs, output = (larger.get(param, param) for param in old)
    offset = offsets.get(old[-1])
    given = [offset] if isinstance(offset, tirx.Var) else []
    made = tirx.PrimFunc([*inputs, *given, output], body).with_attrs(func.attrs)
    known = [
        [position, area.offset, int(old[position].shape[1])]
        for position, area in sorted(areas.items())
        if isinstance(area.offset, int)
    ]
    return made if given else made.with_attr(AREAS, known)
