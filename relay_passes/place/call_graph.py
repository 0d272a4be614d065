"""Calls of a function by number, and the tensors between them."""

from __future__ import annotations

import math
from collections import defaultdict

import tvm
from tvm import relax

from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call, static_shape

__all__ = ["HOST", "CallGraph", "Tensor", "tensor_bytes", "tensor_type"]

HOST = 0
"""The operator that makes the inputs and reads the results."""

Tensor = tuple[relax.Var, int]
"""A variable, and which item of it."""


class CallGraph:
    """Calls of ``main`` by number, from 1, and who makes and reads which tensor.

    Tuples and other names of tensors are looked through.
    """

    def __init__(self, main: relax.Function) -> None:
        self.calls: list[tuple[relax.Var, relax.Call]] = []
        self.producer: dict[Tensor, int] = {}
        self.readers: dict[Tensor, list[int]] = defaultdict(list)
        self._items: dict[relax.Var, list[list[Tensor]]] = {}  # the tensors in each, of a tuple
        for param in main.params:
            self._produce(param, HOST)
        for binding in bindings_of(main):
            value = binding.value
            if not isinstance(value, relax.Call):
                self._items[binding.var] = self._items_of(value)
                continue
            self.calls.append((binding.var, value))
            for tensor in self.reads(value):
                self._read(tensor, len(self.calls))
            self._produce(binding.var, len(self.calls))
        for tensor in self._tensors(main.body.body):
            self._read(tensor, HOST)

    def reads(self, call: relax.Call) -> list[Tensor]:
        """Return the tensors that a call reads, each once."""
        return list(dict.fromkeys(t for arg in call.args for t in self._tensors(arg)))

    def kernel_before(self, call: relax.Call) -> int | None:
        """Return the operator whose kernel a call is fused into, if there is one."""
        tail = of_call(call).blocks in ("unary", "nary")
        if not tail and not is_call(call, "relax.equal", "relax.nn.prelu"):
            return None
        for tensor in reversed(self.reads(call)):
            producer = self.producer[tensor]
            if producer and len(self.readers[tensor]) == 1:
                return producer
        return None

    def _produce(self, var: relax.Var, operator: int) -> None:
        types = var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]
        items = [
            [(var, i)] if isinstance(ty, relax.TensorType) else [] for i, ty in enumerate(types)
        ]
        self._items[var] = items
        self.producer |= {tensor: operator for item in items for tensor in item}

    def _read(self, tensor: Tensor, operator: int) -> None:
        if operator not in self.readers[tensor] and operator != self.producer[tensor]:
            self.readers[tensor].append(operator)

    def _tensors(self, expr: relax.Expr) -> list[Tensor]:
        return [tensor for item in self._items_of(expr) for tensor in item]

    def _items_of(self, expr: relax.Expr) -> list[list[Tensor]]:
        if isinstance(expr, relax.Tuple):
            return [self._tensors(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return [self._items_of(expr.tuple_value)[expr.index]]
        return self._items.get(expr, []) if isinstance(expr, relax.Var) else []


def tensor_type(tensor: Tensor) -> relax.Type:
    """Return the type of a tensor."""
    var, item = tensor
    return var.ty.fields[item] if isinstance(var.ty, relax.TupleType) else var.ty


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; 0 where they depend on data."""
    ty = tensor_type(tensor)
    shape = static_shape(ty)
    return 0 if shape is None else math.prod(shape) * tvm.DataType(str(ty.dtype)).itemsize
