"""Work of each launch of a scheduled kernel, read off its loops.

On a CPU a parallel loop is a launch, and an iteration of it a work-group of one work-item.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.gpu.cycles import OTHER_REGISTERS
from tvm_edge.schedules.placed_buffers import with_placed_buffers

__all__ = ["Launch", "launches_of", "shares_memory"]

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)

# A call (exp, tanh …) is a dozen instructions or so.
_CALL = 8.0


@dataclass(frozen=True, order=True)
class Launch:
    """A grid of work-groups.

    Attributes
    ----------
    groups : int
        Work-groups.
    items : int
        Work-items of one.
    flops : float
        Floating-point operations of a work-group, a multiply-add counted as two.
    loads : float
        How often a work-item reads global memory; a vector is one read.
    steps : int
        How often a work-group waits for what it brings to local memory; at least 1.
    registers : int
        32-bit registers of a work-item, estimated.
    local_bytes : int
        Local memory of a work-group.
    nbytes : float
        Bytes that the launch moves at least: each tensor once, or as far as it is used.
    """

    groups: int
    items: int
    flops: float
    loads: float = 0.0
    steps: int = 1
    registers: int = OTHER_REGISTERS
    local_bytes: int = 0
    nbytes: float = 0.0


def launches_of(func: tirx.PrimFunc) -> tuple[Launch, ...] | None:
    """The launches of a scheduled kernel, in order.

    Returns
    -------
    tuple of Launch or None
        ``None`` where how often its loops run is known in a run only.
    """
    found = []
    for nest in _nests(with_placed_buffers(func).body):
        reader = _Reader()
        reader.read(nest)
        if not reader.known:
            return None
        found.append(reader.launch())
    return tuple(found)


def shares_memory(func: tirx.PrimFunc) -> bool:
    """Return whether work-items of a work-group share local memory, and so meet at barriers.

    Told of all kernels, also of those whose loops run as often as data say.
    """
    buffers = [node.buffer for node in nodes_in(func.body, tirx.AllocBuffer)]
    buffers += (b for block in nodes_in(func.body, s_tir.SBlock) for b in block.alloc_buffers)
    return any(str(buffer.scope()).startswith("shared") for buffer in buffers)


def _nests(stmt: Any) -> Iterator[tirx.Stmt]:
    """The outermost loops of a kernel."""
    if isinstance(stmt, s_tir.SBlockRealize):
        yield from _nests(stmt.block.body)
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _nests(part)
    elif isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != "thread_extent":
        yield from _nests(stmt.body)
    elif isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        yield from _nests(stmt.then_case)
    elif isinstance(
        stmt, tirx.For | tirx.AttrStmt | tirx.BufferStore | tirx.IfThenElse | tirx.While
    ):
        yield stmt


class _Reader:
    """Goes through one launch."""

    def __init__(self) -> None:
        self.known = True
        self._groups: dict[str, int] = {}
        self._items: dict[str, int] = {}
        self._trips = 1.0  # of a work-item, through the statement that is read
        self._lanes = 1  # of those in vectors
        self._virtual = 1
        self._serial: list[int] = []
        self._flops = self._loads = 0.0
        self._steps = 1
        self._registers = self._local = 0.0
        # Elements of global buffers that a work-item uses.
        self._used: defaultdict[tirx.Var, float] = defaultdict(float)

    def launch(self) -> Launch:
        """The launch that was read."""
        groups, items = prod(self._groups.values()), prod(self._items.values())
        moved = sum(
            min(_nbytes(buffer), used * items * groups * _itemsize(buffer))
            for buffer, used in self._used.items()
        )
        return Launch(
            groups,
            items,
            self._flops * items,
            self._loads,
            self._steps,
            OTHER_REGISTERS + int(self._registers) // 4,
            int(self._local),
            moved,
        )

    def read(self, stmt: Any) -> None:
        """Add up a statement."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.read(part)
        elif isinstance(stmt, s_tir.SBlockRealize):
            for buffer in stmt.block.alloc_buffers:
                self._allocate(buffer)
            self.read(stmt.block.body)
        elif isinstance(stmt, tirx.AllocBuffer):
            self._allocate(stmt.buffer)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt)
        elif isinstance(stmt, tirx.AttrStmt):
            if stmt.attr_key == "thread_extent":
                self._bind(str(stmt.node.thread_tag), constant(stmt.value))
            self.read(stmt.body)
        elif isinstance(stmt, tirx.IfThenElse):
            self._expression(stmt.condition)
            self.read(stmt.then_case)
            if stmt.else_case is not None:
                self.read(stmt.else_case)
        elif isinstance(stmt, tirx.While):
            self.known = False
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt)
        elif isinstance(stmt, tirx.Bind | tirx.Evaluate):
            self._expression(stmt.value)

    def _loop(self, loop: tirx.For) -> None:
        extent = constant(loop.extent)
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(loop.thread_binding.thread_tag)
            if not tag.startswith("vthread"):
                self._bind(tag, extent)
                self.read(loop.body)
                return
        elif loop.kind == tirx.ForKind.PARALLEL:
            # Its iterations are work-groups; another one inside runs in the work-group.
            if not self._groups:
                self._bind("parallel", extent)
                self.read(loop.body)
                return
        if extent is None:
            self.known = False
            return
        outside = (self._trips, self._lanes, self._virtual)
        self._trips *= extent
        if loop.kind == tirx.ForKind.VECTORIZED:
            self._lanes *= extent
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            self._virtual *= extent
        serial = loop.kind == tirx.ForKind.SERIAL and extent > 1
        if serial:
            self._serial.append(extent)
        self.read(loop.body)
        if serial:
            self._serial.pop()
        self._trips, self._lanes, self._virtual = outside

    def _bind(self, tag: str, extent: int | None) -> None:
        if extent is None:
            self.known = False
            return
        axes = self._items if tag.startswith("threadIdx") else self._groups
        axes[tag] = max(axes.get(tag, 1), extent)

    def _allocate(self, buffer: tirx.Buffer) -> None:
        scope = str(buffer.scope())
        if scope.startswith("shared"):
            self._local += _nbytes(buffer)
        elif scope != "global":
            self._registers += _nbytes(buffer) * self._virtual

    def _store(self, store: tirx.BufferStore) -> None:
        scope = str(store.buffer.scope())
        if scope.startswith("shared") and self._serial:
            self._steps = max(self._steps, self._serial[0])
        if scope == "global":
            self._used[store.buffer] += self._trips
        self._expression(store.value)

    def _expression(self, value: Any) -> None:
        # Walks are slow to begin, and most expressions are sums and products of a few loads.
        if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return
        if isinstance(value, ir.TensorLoad):
            self._load(value)
        elif isinstance(value, _ARITHMETIC):
            self._operation(value)
            self._expression(value.a)
            self._expression(value.b)
        else:
            handlers = (
                (ir.TensorLoad, self._load),
                (ir.Call, self._call),
                (_ARITHMETIC, self._operation),
            )
            tvm_ffi.structural_walk(value, handlers, order="pre")

    def _load(self, node: ir.TensorLoad) -> Any:
        if str(node.source.scope()) == "global":
            self._loads += self._trips / self._lanes
            self._used[node.source] += self._trips
        return tvm_ffi.WalkResult.SKIP  # indices are not the kernel's work

    def _operation(self, node: tirx.Expr) -> None:
        if str(node.ty.dtype).startswith(("float", "bfloat")):
            self._flops += self._trips

    def _call(self, node: ir.Call) -> None:
        if str(getattr(node.ty, "dtype", "")).startswith("float"):
            self._flops += _CALL * self._trips


def _itemsize(buffer: tirx.Buffer) -> int:
    return int(tvm.DataType(str(buffer.dtype)).itemsize)


def _nbytes(buffer: tirx.Buffer) -> float:
    """Bytes of a buffer; of one of unknown size none."""
    sizes = [constant(dim) for dim in buffer.shape]
    return 0.0 if None in sizes else float(prod(s or 0 for s in sizes) * _itemsize(buffer))
