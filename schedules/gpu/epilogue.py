"""Epilogues: the store of results, at any place of a generated kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.accesses import IF_THEN_ELSE, coefficient, nodes_in, uses
from tvm_edge.schedules.emit import Tensor
from tvm_edge.schedules.open_lengths import Length, divides, length_of, total
from tvm_edge.schedules.words import WORD, loads_of

__all__ = [
    "Epilogue",
    "Memory",
    "as_vectors",
    "branches",
    "place_in_block",
    "step_along",
    "substituted",
]

Variables = Sequence[tuple[tirx.Var, Any]]


def as_vectors(tensors: Sequence[Tensor], buffers: Sequence[Any]) -> list[Any]:
    """Return a kernel's parameters as vectors with 32-bit indices; their own have 64."""
    return [
        T.buffer_proxy(T.decl_buffer([_elements(shape)], dtype, buffer.data))
        for (shape, dtype), buffer in zip(tensors, buffers, strict=True)
    ]


def _elements(shape: Sequence[Length]) -> Length:
    count = total(shape)
    return max(1, count) if isinstance(count, int) else count


@dataclass(frozen=True)
class Memory:
    """Parameters as vectors.

    Attributes
    ----------
    params : sequence of buffer
        Of the analyzed function.
    flat : sequence of buffer
        The same memory in the generated function.
    simplify : sym.Analyzer
        Has the ranges of the axes.
    """

    params: Sequence[tirx.Buffer]
    flat: Sequence[Any]
    simplify: Any

    def offset(self, buffer: tirx.Buffer, indices: Any, variables: Variables) -> tirx.Expr:
        """Return the offset of an element in its buffer."""
        place: tirx.Expr = tirx.const(0, "int32")
        for index, size in zip(indices, buffer.shape, strict=True):
            place = place * length_of(size) + substituted(index, variables)
        return self.simplify.simplify(place)

    def flattened(self, expr: tirx.Expr, variables: Variables) -> tirx.Expr:
        """Return `expr` at other places, of vectors; loads of other buffers stay as they are."""

        def on_load(load: ir.TensorLoad) -> Any:
            for param, flat in zip(self.params, self.flat, strict=True):
                if load.source.same_as(param):
                    return flat[self.offset(param, load.indices, variables)]
            return load

        return substituted(tvm_ffi.structural_map(expr, (ir.TensorLoad, on_load)), variables)

    def is_straight(self, expr: tirx.Expr, axis: tirx.Var) -> bool:
        """Return whether all loads of `expr` lie side by side along `axis`."""
        return all(step_along(offset, axis) == 1 for offset in self.offsets_in(expr))

    def in_vectors(self, expr: tirx.Expr, axis: tirx.Var, extent: Length, width: int) -> bool:
        """Return whether `width` neighbours on `axis`, of length `extent`, can be read together."""
        return divides(width, extent) and self.is_straight(expr, axis) and not branches(expr)

    def words(self, expr: tirx.Expr) -> list[tirx.Expr] | None:
        """Return the lines of four that begin at the numbers of a word, as words.

        Return ``None`` where `expr` is something else. Numbers are then read where only a
        multiple of four is asked for.
        """
        loads = loads_of(expr)
        if loads is None:
            return None
        flat = [load.source for load in loads]
        whole = {buffer: T.buffer_proxy(_in_words(buffer)) for buffer in set(flat)}
        return [
            whole[buffer][tirx.floordiv(load.indices[0], WORD)]
            for buffer, load in zip(flat, loads, strict=True)
        ]

    def offsets_in(self, expr: tirx.Expr) -> list[tirx.Expr]:
        """Return the indices of the loads of vectors in `expr`."""
        return [load.indices[0] for load in nodes_in(expr, ir.TensorLoad) if len(load.indices) == 1]


def _in_words(buffer: Any) -> Any:
    """View the memory of an int8 vector as words."""
    return T.decl_buffer([max(1, int(buffer.shape[0]) // WORD)], "int32", buffer.data)


class Epilogue:
    """Epilogue: the block that reads results from their buffer and stores what follows them.

    Parameters
    ----------
    block : SBlock
        Stores one element for each result, see
        :func:`~tvm_edge.schedules.stages.epilogue_of`.
    accumulators : buffer
        The accumulators that it reads, each element where it stands.
    memory : Memory
        It writes the last parameter.
    axes : sequence of Var
        Index the accumulators in the generated kernel; neighbours differ in the last one.
    places : sequence of Expr
        The block's variables, by `axes`.
    """

    def __init__(
        self,
        block: s_tir.SBlock,
        accumulators: tirx.Buffer | None,
        memory: Memory,
        axes: Sequence[tirx.Var],
        places: Sequence[tirx.Expr],
    ) -> None:
        self._accumulators, self._memory, self._axes = accumulators, memory, axes
        variables = [(v.var, place) for v, place in zip(block.iter_vars, places, strict=True)]
        store = block.body
        self._result = memory.flattened(store.value, variables)
        self._target = memory.offset(store.buffer, store.indices, variables)

    def in_vectors(self, extent: Length, width: int) -> bool:
        """Return whether results side by side, `extent` in a line, can be stored together."""
        last = self._axes[-1]
        offsets = [self._target, *self._memory.offsets_in(self._result)]
        return (
            divides(width, extent)
            and step_along(self._target, last) == 1
            and all(step_along(offset, last) is not None for offset in offsets)
            and not branches(self._result)
        )

    def write(self, where: Sequence[tirx.Expr], total: tirx.Expr) -> None:
        """Store the epilogue's value of one accumulator."""
        target, offset, value = self.stored(where, total)
        target[offset] = value

    def stored(
        self, where: Sequence[tirx.Expr], total: tirx.Expr
    ) -> tuple[Any, tirx.Expr, tirx.Expr]:
        """Return the target vector of one accumulator, the offset in it, and the value."""
        return self._memory.flat[-1], self._at(self._target, where), self._value(where, total)

    def write_vector(
        self, where: Sequence[tirx.Expr], total: Callable[[tirx.Expr], tirx.Expr], width: int
    ) -> None:
        """Store the epilogue of `width` accumulators; ``total(lane)`` is one of them."""
        with T.vectorized(0, width) as lane:
            self.write([*where[:-1], where[-1] + lane], total(lane))

    def _at(self, expr: Any, where: Sequence[tirx.Expr]) -> Any:
        return substituted(expr, list(zip(self._axes, where, strict=True)))

    def _value(self, where: Sequence[tirx.Expr], total: tirx.Expr) -> Any:
        def on_load(load: ir.TensorLoad) -> Any:
            return total if load.source.same_as(self._accumulators) else load

        return tvm_ffi.structural_map(self._at(self._result, where), (ir.TensorLoad, on_load))


def place_in_block(
    n: tirx.Expr, channel: tirx.Expr, y: tirx.Expr, x: tirx.Expr, block: int
) -> list[tirx.Expr]:
    """Return the indices of an element of an image in channel blocks."""
    return [n, tirx.floordiv(channel, block), y, x, tirx.floormod(channel, block)]


def substituted(expr: Any, variables: Variables) -> Any:
    """Substitute other expressions for the variables of `expr`."""

    def on_variable(var: tirx.Var) -> Any:
        return next((value for known, value in variables if known.same_as(var)), var)

    return tvm_ffi.structural_map(expr, (tirx.Var, on_variable))


def step_along(offset: tirx.Expr, axis: tirx.Var) -> int | None:
    """Return the step of an offset along `axis`; ``None`` if it is neither 0 nor 1."""
    if not uses(offset, axis):
        return 0
    return 1 if coefficient(offset, axis) == 1 else None


def branches(expr: tirx.Expr) -> bool:
    """Return whether there is a choice in it that vectors cannot make."""
    return any(call.op.same_as(IF_THEN_ELSE) for call in nodes_in(expr, ir.Call))
