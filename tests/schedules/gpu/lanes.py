"""Runs kernels of sub-groups without a device that has any: all work-groups at once, in NumPy.

An element that a block is read from or written to must exist, and so must every other one that an
active lane touches; what all lanes have to do together has to be reached by all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.gpu.subgroup_calls import PIN

__all__ = ["Lanes"]

_BINARY = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Max: np.maximum,
    tirx.Min: np.minimum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


class Lanes:
    """A kernel of one launch of sub-groups, and how often it did what.

    Parameters
    ----------
    func : PrimFunc
        As the rule wrote it.
    tensors : sequence of np.ndarray
        Its parameters; results are written to them.

    Attributes
    ----------
    calls : dict of str to int
        By the name of an OpenCL function, work-groups that called it.
    """

    def __init__(self, func: tirx.PrimFunc, tensors: Sequence[np.ndarray]) -> None:
        self.calls: dict[str, int] = {}
        self._extents: dict[str, int] = {}
        self._values: dict[int, Any] = {}
        self._memory = {
            hash(param): tensor.reshape(-1)
            for param, tensor in zip(func.params, tensors, strict=True)
        }
        self._run(func.body, np.ones((1, 1), bool))

    # ------------------------------------------------------------------------------- statements

    def _run(self, stmt: Any, active: np.ndarray) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self._run(part, active)
        elif type(stmt).__name__ == "SBlockRealize":
            self._run(stmt.block.body, active)
        elif isinstance(stmt, tirx.AttrStmt):
            self._run(stmt.body, self._launched(stmt, active))
        elif isinstance(stmt, tirx.DeclBuffer):
            (other,) = stmt.data.args  # tirx.buffer_data
            self._memory[hash(stmt.buffer)] = self._memory[hash(other)]
        elif isinstance(stmt, tirx.AllocBuffer):
            self._allocate(stmt.buffer)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt, active)
        elif isinstance(stmt, tirx.Evaluate):
            self._value(stmt.value, active)
        elif isinstance(stmt, tirx.IfThenElse):
            holds = self._holds(stmt.condition, active)
            self._run(stmt.then_case, active & holds)
            if stmt.else_case is not None:
                self._run(stmt.else_case, active & ~holds)
        elif isinstance(stmt, tirx.For):
            for i in range(constant(stmt.extent) or 0):
                self._values[hash(stmt.loop_var)] = i
                self._run(stmt.body, active)
        else:
            raise NotImplementedError(type(stmt))

    def _launched(self, stmt: tirx.AttrStmt, active: np.ndarray) -> np.ndarray:
        if stmt.attr_key != "thread_extent":
            return active
        extent = constant(stmt.value) or 0
        self._extents[str(stmt.node.thread_tag)] = extent
        if stmt.node.thread_tag == "blockIdx.x":
            self._values[hash(stmt.node.var)] = np.arange(extent)[:, None]
            return np.ones((extent, 1), bool)
        return np.ones((active.shape[0], extent), bool)

    def _allocate(self, buffer: tirx.Buffer) -> None:
        shape = (int(buffer.shape[0]), self._extents["blockIdx.x"], self._extents["threadIdx.x"])
        # What nobody has stored yet shows in the results.
        fill = np.nan if buffer.dtype == "float32" else -(1 << 30)
        self._memory[hash(buffer)] = np.full(shape, fill, str(buffer.dtype))

    def _store(self, stmt: tirx.BufferStore, active: np.ndarray) -> None:
        memory, value = self._memory[hash(stmt.buffer)], self._value(stmt.value, active)
        (index,) = (self._value(i, active) for i in stmt.indices)
        if memory.ndim == 3:
            memory[index] = np.where(active, value, memory[index])
            return
        where = np.broadcast_to(index, active.shape)[active]
        _within(where, memory)
        memory[where] = np.broadcast_to(value, active.shape)[active]

    # ------------------------------------------------------------------------------ expressions

    def _value(self, expr: Any, active: np.ndarray) -> Any:
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return np.float32(expr.value) if isinstance(expr, tirx.FloatImm) else int(expr)
        if isinstance(expr, tirx.Var):
            return self._values[hash(expr)]
        if isinstance(expr, tirx.Cast):
            return self._value(expr.value, active)
        if isinstance(expr, ir.TensorLoad):
            return self._load(expr, active)
        if isinstance(expr, ir.Call):
            return self._call(expr, active)
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
            return np.where(*(self._value(part, active) for part in parts))
        made = _BINARY[type(expr)](self._value(expr.a, active), self._value(expr.b, active))
        return made.astype("float32") if getattr(made, "dtype", None) == "float64" else made

    def _holds(self, condition: Any, active: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.asarray(self._value(condition, active), bool), active.shape)

    def _load(self, load: ir.TensorLoad, active: np.ndarray) -> Any:
        memory = self._memory[hash(load.source)]
        (index,) = (self._value(i, active) for i in load.indices)
        if memory.ndim == 3:
            return memory[index]
        where = np.broadcast_to(index, active.shape)
        _within(where[active], memory)
        return memory[np.where(active, where, 0)]

    def _call(self, call: ir.Call, active: np.ndarray) -> Any:
        if call.op.name == "prim.if_then_else":
            holds = self._holds(call.args[0], active)
            yes = self._value(call.args[1], active & holds)
            return np.where(holds, yes, self._value(call.args[2], active & ~holds))
        assert call.op.name == "tirx.call_extern", call.op.name
        name, args = str(call.args[0].value), list(call.args[1:])
        groups = active.any(axis=1)
        self.calls[name] = self.calls.get(name, 0) + int(groups.sum())
        if name in ("as_float", "as_uint"):
            return self._value(args[0], active)
        assert (active == groups[:, None]).all(), f"{name} is not reached by all lanes"
        lanes = np.arange(active.shape[1])
        if name == PIN:
            assert self._value(args[0], active) == len(lanes), "a group is one sub-group"
        if name == "get_sub_group_local_id":
            return np.broadcast_to(lanes, active.shape)
        if name.startswith("intel_sub_group_block"):
            return self._block(name, args, active)
        if name == "intel_sub_group_shuffle":
            values = np.broadcast_to(self._value(args[0], active), active.shape)
            return values[:, [int(args[1])]]
        if name == "intel_sub_group_shuffle_down":
            both = [np.broadcast_to(self._value(arg, active), active.shape) for arg in args[:2]]
            assert 0 <= int(args[2]) <= len(lanes)
            return np.concatenate(both, axis=1)[:, int(args[2]) + lanes]
        return None

    def _block(self, name: str, args: Sequence[Any], active: np.ndarray) -> Any:
        load = args[0].args[0]
        memory = self._memory[hash(load.source)]
        first = np.broadcast_to(self._value(load.indices[0], active), active.shape)
        assert (first == first[:, :1])[active].all(), f"{name} at a place of each lane's own"
        where = first + np.arange(active.shape[1])
        _within(where[active], memory)
        if name.endswith("read"):
            return memory[np.where(active, where, 0)]
        assert (first[active] % 4 == 0).all(), "block writes begin at multiples of 16 bytes"
        memory[where[active]] = np.broadcast_to(self._value(args[1], active), active.shape)[active]
        return None


def _within(where: np.ndarray, memory: np.ndarray) -> None:
    if where.size:
        assert 0 <= where.min() and where.max() < memory.size, (
            f"elements {where.min()} to {where.max()} of {memory.size}"
        )
