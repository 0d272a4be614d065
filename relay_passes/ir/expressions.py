"""Helpers that read and rewrite Relax expressions, constants and functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TypeGuard

import numpy as np
import tvm
from tvm import relax, sym, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.typical import typical

__all__ = [
    "KERNEL_CALLS",
    "all_bindings",
    "array_of",
    "bindings_in",
    "bindings_of",
    "const",
    "constant_of",
    "count_uses",
    "is_call",
    "kernel_calls",
    "lengths_of",
    "may_hold_tensors",
    "same_length",
    "static_shape",
    "typical_shape",
    "unused_name",
    "with_bindings",
    "with_blocks",
    "with_functions_named",
]

KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
"""Operators that call a kernel, a PrimFunc of the module."""


def rewrite_functions(
    mod: tvm.IRModule, rewrite: Callable[[relax.Function], relax.Expr]
) -> tvm.IRModule:
    """Put what `rewrite` makes of each of Relax's functions in its place; returns the module."""
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            mod[gvar] = rewrite(func)
    return mod


def is_call(value: relax.Expr | None, *names: str) -> TypeGuard[relax.Call]:
    """Return whether an expression calls one of the operators of these names."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and str(value.op.name) in names
    )


def constant_of(expr: relax.Expr) -> np.ndarray | None:
    """Return the value of a constant, ``None`` for any other expression."""
    return array_of(expr.value) if isinstance(expr, tvm.ir.GenericConst) else None


def array_of(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Return a tensor of the CPU as an array that cannot be written, without a copy if it can be.

    NumPy has views of its own types alone; of the others (bfloat16) there is a copy.
    """
    array = np.from_dlpack(tensor) if _is_numpys(str(tensor.dtype)) else tensor.numpy()
    array.flags.writeable = False
    return array


def _is_numpys(dtype: str) -> bool:
    try:
        return np.dtype(dtype).isbuiltin == 1  # 2: of a library
    except TypeError:
        return False


def count_uses(func: relax.Function) -> dict[relax.Var, int]:
    """Count the bindings that read each variable; the function's result counts as one."""
    uses: dict[relax.Var, int] = {}
    readers = [binding.value for binding in bindings_of(func)]
    for reader in [*readers, func.body.body]:
        for var in relax.analysis.free_vars(reader):
            uses[var] = uses.get(var, 0) + 1
    return uses


def const(value: np.ndarray, dtype: str) -> relax.Expr:
    """Make a constant of this value."""
    # Not ascontiguousarray, which makes a vector of a scalar.
    return relax.const(np.asarray(value, dtype, order="C"), dtype)


def static_shape(ty: relax.Type) -> tuple[int, ...] | None:
    """Return the shape of a tensor's type, ``None`` if it has none or a symbolic dimension."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    dims = [constant(dim) for dim in ty.shape.values]
    return None if None in dims else tuple(dim for dim in dims if dim is not None)


def lengths_of(ty: relax.Type) -> tuple[int | tirx.Expr, ...] | None:
    """Return the shape of a tensor's type, numbers where it has them; ``None`` if it has none."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(int(d) if isinstance(d, tirx.IntImm) else d for d in ty.shape.values)


def typical_shape(ty: relax.Type) -> tuple[int, ...] | None:
    """Return the shape of a tensor's type, open lengths as they typically are."""
    lengths = lengths_of(ty)
    return None if lengths is None else tuple(typical(length) for length in lengths)


def same_length(a: int | tirx.Expr, b: int | tirx.Expr) -> bool:
    """Return whether two lengths are known to be equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sym.Analyzer().can_prove_equal(a, b))


def may_hold_tensors(ty: relax.Type) -> bool:
    """Return whether a value of this type can be a tensor, or something that has one."""
    return not isinstance(ty, relax.ShapeType | tvm.ir.PrimType)


def bindings_of(func: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a function, without those in branches."""
    return bindings_in(func.body)


def bindings_in(body: relax.SeqExpr) -> list[relax.Binding]:
    """Return the bindings of a body, without those in its branches."""
    return [binding for block in body.blocks for binding in block.bindings]


def all_bindings(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    """Yield all bindings of a body, those of a branch before the branch's."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from all_bindings(binding.value.true_branch)
                yield from all_bindings(binding.value.false_branch)
            yield binding


def kernel_calls(mod: tvm.IRModule) -> list[str]:
    """Return the names of the kernels that ``main`` calls, in order, all branches included."""
    return [
        str(binding.value.args[0].name_hint)
        for binding in all_bindings(mod["main"].body)
        if is_call(binding.value, *KERNEL_CALLS)
    ]


def with_bindings(
    func: relax.Function, rewrite: Callable[[relax.Binding], Iterable[relax.Binding]]
) -> relax.Function:
    """Replace each binding of a function by what `rewrite` makes of it; keep the result."""
    return with_blocks(
        func,
        [
            type(block)([new for binding in block.bindings for new in rewrite(binding)])
            for block in func.body.blocks
        ],
    )


def with_blocks(func: relax.Function, blocks: list[relax.BindingBlock]) -> relax.Function:
    """Replace the blocks of a function; keep its result, which they have to bind."""
    body = relax.SeqExpr(blocks, func.body.body)
    relax.expr._update_type(body, func.body.ty)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def unused_name(name: str, taken: Container[str]) -> str:
    """Return `name`, or `name` with the first number that makes it none of those that are taken."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def with_functions_named(
    func: relax.Function, names: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]
) -> relax.Function:
    """Make a function call others by the names in `names`."""
    return _Renamer(names).visit_expr(func)


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, names: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__(None)
        self._names = names

    def visit_global_var_(self, op: tvm.ir.GlobalVar) -> relax.Expr:
        return self._names.get(op, op)
