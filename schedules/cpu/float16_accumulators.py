"""Accumulators of float16, and what follows them in float16.

To widen a vector of float16 takes five instructions and to round it again three, as many as a short
reduction has products. Sums and bounds of what was just rounded lose a half of its last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.float16 import rounded, widened

__all__ = ["Accumulators"]

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Max, tirx.Min)
"""Sums and bounds: products may be beyond float16 where results are not (hard swish)."""
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
"""Comparisons of bounds that keep what is no number."""


class Accumulators:
    """Local buffers of float32 that become float16.

    Parameters
    ----------
    narrow : mapping of Buffer to Buffer
        Those of float16, by those that they replace.
    """

    def __init__(self, narrow: Mapping[tirx.Buffer, tirx.Buffer]) -> None:
        self._narrow = narrow

    def __contains__(self, buffer: tirx.Buffer) -> bool:
        return buffer in self._narrow

    def used_by(self, node: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        """Return a block that initialises, or reads, those of float16."""
        block, store = node.block, node.block.body
        used = [region.source for region in (*block.reads, *block.writes)]
        if not isinstance(store, tirx.BufferStore) or not any(buffer in self for buffer in used):
            return node
        made = s_tir.SBlock(
            block.iter_vars,
            self._regions(block.reads),
            self._regions(block.writes),
            block.name_hint,
            self._stored(store),
            annotations=block.annotations,
        )
        return s_tir.SBlockRealize(node.iter_values, node.predicate, made)

    def _stored(self, store: tirx.BufferStore) -> tirx.BufferStore:
        buffer = self._narrow.get(store.buffer, store.buffer)
        value = store.value
        if str(buffer.dtype) == "float16":
            if isinstance(value, tirx.Cast) and str(value.ty.dtype) == "float16":
                value = value.value
            narrow = self._in_float16(value)
            if narrow is not None:
                return tirx.BufferStore(buffer, narrow, store.indices)
            value = tirx.Cast("float16", value)
        wide = tvm_ffi.structural_map(value, (ir.TensorLoad, self._widened))
        return tirx.BufferStore(buffer, wide, store.indices)

    def _widened(self, load: ir.TensorLoad) -> tirx.Expr:
        own = self._narrow.get(load.source)
        return load if own is None else widened(tirx.BufferLoad(own, load.indices))

    def _in_float16(self, value: tirx.Expr) -> tirx.Expr | None:
        """Return what a float32 expression calculates, in float16, if that does for it."""
        if isinstance(value, ir.TensorLoad):
            own = self._narrow.get(value.source)
            if own is not None:
                return tirx.BufferLoad(own, value.indices)
            return tirx.Cast("float16", value)  # of parameters: once for all pixels of a tile
        if isinstance(value, tirx.Cast):
            return value.value if str(value.value.ty.dtype) == "float16" else None
        if isinstance(value, tirx.FloatImm):
            return rounded(value.value)
        if isinstance(value, _ARITHMETIC):
            parts = [self._in_float16(value.a), self._in_float16(value.b)]
            return None if None in parts else type(value)(*parts)
        if isinstance(value, tirx.Select) and isinstance(value.condition, _COMPARISONS):
            test = value.condition
            given = (test.a, test.b, value.true_value, value.false_value)
            parts = [self._in_float16(part) for part in given]
            if None in parts:
                return None
            return tirx.Select(type(test)(*parts[:2]), *parts[2:])
        return None

    def _regions(self, regions: Sequence[ir.TensorRegion]) -> list[ir.TensorRegion]:
        return [
            tirx.BufferRegion(self._narrow[region.source], region.region)
            if region.source in self
            else region
            for region in regions
        ]
