"""Nodes of the user's model that each kernel computes.

Fusion renames variables and shares functions, so names alone do not survive it. Value numbering
does: a value is its producer and the numbers of its arguments, the same before and after fusion.
Lengths that are known only in a run are numbered too, by the value that they are first seen in: the
variables that stand for them are renamed where a ``match_cast`` of a known shape disappears.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, bindings_of, is_call
from tvm_edge.relay_passes.ir.locations import node_of

__all__ = ["NodeTrace"]


class NodeTrace:
    """Remembers the node of every value before fusion; answers for kernels after it.

    Parameters
    ----------
    mod : tvm.IRModule
        Legalised, before fusion.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._node: dict[int, int] = {}
        self._fields: dict[int, list[Hashable]] = {}  # of tuples
        self._lengths: dict[tirx.Var, tirx.Var] = {}  # by variable the one of its number
        self._length_of: dict[Hashable, tirx.Var] = {}
        main = mod["main"]
        env = self._parameters(main)
        # Values of the node whose result comes next.
        pending: list[tuple[int, relax.Expr]] = []
        for binding in all_bindings(main.body):
            number = self._bound(binding, env)
            pending.append((number, binding.value))
            node = node_of(binding.var)
            if node is not None:
                for value, _ in pending:
                    self._node.setdefault(value, node)
                pending.clear()
        for number, expr in pending:  # what only moves a result: the node's it reads
            for var in relax.analysis.free_vars(expr):
                read = env.get(var)
                if isinstance(read, int) and read in self._node:
                    self._node.setdefault(number, self._node[read])

    def nodes_of_kernels(self, mod: tvm.IRModule) -> dict[relax.Var, tuple[int, ...]]:
        """Nodes of every kernel call in ``main`` after ``FuseOps``, by the variable of its result.

        Returns
        -------
        dict of Var to tuple of int
            In execution order, branches one after the other.
        """
        main = mod["main"]
        env = self._parameters(main)
        result: dict[relax.Var, tuple[int, ...]] = {}
        for binding in all_bindings(main.body):
            value = binding.value
            callee = value.op if isinstance(value, relax.Call) else None
            if isinstance(callee, tvm.ir.GlobalVar) and isinstance(mod[callee], relax.Function):
                group = mod[callee]
                inner = dict(
                    zip(group.params, [self._key(a, env) for a in value.args], strict=True)
                )
                for param, argument in zip(group.params, value.args, strict=True):
                    self._match(param.ty, argument.ty, inner[param])
                numbers = [self._bound(step, inner) for step in bindings_of(group)]
                env[binding.var] = key = self._key(group.body.body, inner)
                self._match(binding.var.ty, group.body.body.ty, key)
                result[binding.var] = self._nodes(numbers)
            else:
                number = self._bound(binding, env)
                if is_call(value, *KERNEL_CALLS):
                    result[binding.var] = self._nodes([number])
        return result

    def _parameters(self, main: relax.Function) -> dict[relax.Var, Hashable]:
        """Keys of the inputs, with which the lengths in their types are numbered first."""
        env: dict[relax.Var, Hashable] = {p: ("param", i) for i, p in enumerate(main.params)}
        for parameter, key in env.items():
            self._match(parameter.ty, parameter.ty, key)
        return env

    def _nodes(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({self._node[n] for n in numbers if n in self._node}))

    def _bound(self, binding: relax.Binding, env: dict[relax.Var, Hashable]) -> int:
        """Number what a binding computes, and lengths that it is the first to name."""
        env[binding.var] = number = self._number(binding.value, env)
        self._match(binding.var.ty, binding.value.ty, number)
        return number

    def _match(self, ty: relax.Type, source: relax.Type, key: Hashable) -> None:
        """Lengths in the type of a value, which `source` may know by another name."""
        if isinstance(ty, relax.TupleType):
            sources = source.fields if isinstance(source, relax.TupleType) else ty.fields
            for index, (field, other) in enumerate(zip(ty.fields, sources, strict=True)):
                self._match(field, other, ("item", index, key))
            return
        known = _dims(source)
        for axis, dim in enumerate(_dims(ty)):
            if not isinstance(dim, tirx.Var) or dim in self._lengths:
                continue
            other = known[axis] if axis < len(known) else dim
            if other in self._lengths:
                self._lengths[dim] = self._lengths[other]
            else:
                at = (key, axis)
                self._lengths[dim] = self._length_of.setdefault(
                    at, tirx.Var(f"length{len(self._length_of)}", dim.ty.dtype)
                )

    def _length(self, dim: tirx.Expr) -> str:
        """An expression in lengths, by their numbers."""

        def renamed(var: tirx.Var) -> tirx.Var:
            return self._lengths.get(var, var)

        return str(tvm_ffi.structural_map(dim, (tirx.Var, renamed)))

    def _number(self, expr: relax.Expr, env: dict[relax.Var, Hashable]) -> int:
        """The number of the value that `expr` computes."""
        key = self._key(expr, env)
        if isinstance(key, int):
            return key
        number = self._numbers.setdefault(key, len(self._numbers))
        if isinstance(expr, relax.Tuple):
            self._fields[number] = [self._key(field, env) for field in expr.fields]
        return number

    def _key(self, expr: relax.Expr, env: dict[relax.Var, Hashable]) -> Hashable:
        if isinstance(expr, relax.Var):
            return env.get(expr, ("free", expr.name))
        if isinstance(expr, relax.Call):
            arguments = tuple(self._key(arg, env) for arg in expr.args)
            return ("call", str(expr.op), arguments, str(expr.attrs))
        if isinstance(expr, relax.Tuple):
            return ("tuple", *(self._key(field, env) for field in expr.fields))
        if isinstance(expr, relax.If):
            ends = (expr.cond, expr.true_branch.body, expr.false_branch.body)
            return ("if", *(self._key(end, env) for end in ends))
        if isinstance(expr, relax.TupleGetItem):
            whole = self._key(expr.tuple_value, env)
            if isinstance(whole, int) and whole in self._fields:
                return self._fields[whole][expr.index]  # passes may leave out the tuple
            return ("item", expr.index, whole)
        if isinstance(expr, tvm.ir.GenericConst):
            return ("const", expr)  # hashed by identity: fusion passes constants on untouched
        if isinstance(expr, tvm.ir.GlobalVar):
            return ("global", expr.name_hint)
        if isinstance(expr, relax.ShapeExpr):
            return ("shape", *(self._length(dim) for dim in expr.values))
        return ("other", str(expr))


def _dims(ty: relax.Type) -> list[tirx.Expr]:
    """The lengths in a type that names them; none for others."""
    if isinstance(ty, relax.ShapeType):
        return list(ty.values or [])
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    return []
