"""Epilogue of several channels of a pixel at once, of types that CUDA has no vectors of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import IF_THEN_ELSE, nodes_in, uses
from tvm_edge.schedules.emit import registers
from tvm_edge.schedules.gpu.epilogue import Epilogue, branches, step_along, substituted
from tvm_edge.schedules.gpu.nan_bounds import bounded_keeping_nan
from tvm_edge.schedules.gpu.round_bounded import rounded_by_additions
from tvm_edge.schedules.gpu.tensor_vectors import has_vectors, load_vector, store_vector

__all__ = ["TensorEpilogue"]

Loaded = list[tuple[Any, Any]]
"""Loads, and the registers that have the elements of all lanes."""


class TensorEpilogue(Epilogue):
    """Epilogue over image, channel block, pixel and lane: those axes, in this order.

    Parameters as of :class:`~tvm_edge.schedules.gpu.epilogue.Epilogue`.
    """

    def of_channels(self, block: tirx.Expr, lane: tirx.Expr, count: int) -> Loaded:
        """Load what all pixels share: biases of `count` channels from `lane` of `block` on."""
        image, _, pixel, _ = self._axes
        where = [image, block, pixel, lane]
        return self._loaded(
            lambda load: not (uses(load.indices[0], image) or uses(load.indices[0], pixel)),
            where,
            count,
        )

    def write_lanes(
        self, where: Sequence[tirx.Expr], values: Sequence[tirx.Expr], shared: Loaded
    ) -> None:
        """Store the epilogue of accumulators of neighbouring lanes.

        Parameters
        ----------
        where : sequence of Expr
            Of the first one. Its lane is a multiple of their number: 2, 4, 8 or 16.
        values : sequence of Expr
        shared : list
            As :meth:`of_channels` returned it for these channels.
        """
        lane, count = self._axes[-1], len(values)
        target = self._memory.flat[-1]
        dtype = str(target.dtype)
        if step_along(self._target, lane) != 1 or not has_vectors(dtype):
            for i, value in enumerate(values):
                self.write([*where[:-1], where[-1] + i], value)
            return
        known = [load for load, _ in shared]
        own = self._loaded(
            lambda load: not any(tvm_ffi.structural_equal(load, each) for each in known),
            where,
            count,
        )
        results = []
        for i, value in enumerate(values):
            result = self._lane(i, value, [*shared, *own])
            # A condition on the lane is known where lanes are constants.
            if isinstance(where[-1], tirx.IntImm):
                result = substituted(result, [(lane, where[-1] + i)])
            result = self._memory.simplify.simplify(result)
            result = self._at(result, [*where[:-1], where[-1] + i])
            wide = "float32" if dtype.startswith("float") else "int32"
            result = _unrounded(result, dtype, wide)  # that, or cut, with the others
            result = bounded_keeping_nan(rounded_by_additions(result))
            is_wide = str(result.ty.dtype) == wide
            results.append(result if is_wide else tirx.Cast(wide, result))
        store_vector(target, self._at(self._target, where), results)

    def _loaded(self, wanted: Any, where: Sequence[tirx.Expr], count: int) -> Loaded:
        """Load what lies side by side along the lanes, unless only some lanes may read it."""
        found: Loaded = []
        for load in nodes_in(self._result, ir.TensorLoad):
            known = any(tvm_ffi.structural_equal(load, each) for each, _ in found)
            dtype = str(load.ty.dtype)
            if known or self._is_accumulator(load) or not has_vectors(dtype):
                continue
            if not wanted(load) or branches(self._result):
                continue
            if step_along(load.indices[0], self._axes[-1]) == 1:
                # A byte is extended once, and then converted as an int32 is, which is faster.
                kept = registers(count, "int32" if dtype == "int8" else dtype)
                load_vector(kept, load.source, self._at(load.indices[0], where), count)
                found.append((load, kept))
        return found

    def _lane(self, i: int, value: tirx.Expr, loaded: Loaded) -> Any:
        """Return the result of lane `i`, whose accumulator is `value`."""

        def on_load(load: ir.TensorLoad) -> Any:
            if self._is_accumulator(load):
                return value
            found = (kept for each, kept in loaded if tvm_ffi.structural_equal(load, each))
            kept = next(found, None)
            if kept is None:
                return load
            own = kept[i]
            dtype = str(load.ty.dtype)
            return own if str(own.ty.dtype) == dtype else tirx.Cast(dtype, own)

        def on_cast(cast: tirx.Cast) -> Any:
            inner = cast.value
            if isinstance(inner, tirx.Cast) and str(inner.ty.dtype) == "int8":
                extended = inner.value
                if isinstance(extended, ir.TensorLoad) and str(extended.ty.dtype) == "int32":
                    return tirx.Cast(str(cast.ty.dtype), extended)
            return cast

        result = tvm_ffi.structural_map(self._result, (ir.TensorLoad, on_load))
        return tvm_ffi.structural_map(result, (tirx.Cast, on_cast))

    def _is_accumulator(self, load: ir.TensorLoad) -> bool:
        return self._accumulators is not None and bool(load.source.same_as(self._accumulators))


def _unrounded(value: Any, dtype: str, wide: str) -> Any:
    """Return `value` without roundings to `dtype` that nothing is calculated after."""
    if isinstance(value, ir.Call) and value.op.same_as(IF_THEN_ELSE):
        condition, *branches = value.args
        found = [_unrounded(branch, dtype, wide) for branch in branches]
        same = str(found[0].ty.dtype) == str(found[1].ty.dtype)
        return tirx.if_then_else(condition, *found) if same else value
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) in (dtype, wide):
        inner = value.value
        if str(value.ty.dtype) == dtype and str(inner.ty.dtype) == wide:
            return _unrounded(inner, dtype, wide)
        rounds = isinstance(inner, tirx.Cast) and str(inner.ty.dtype) == dtype
        if rounds and str(inner.value.ty.dtype) == wide:
            return _unrounded(inner.value, dtype, wide)
    return value
