"""Distinct elements on a CPU: the runs of a stable argsort."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import Kernel, function, register, when
from tvm_edge.schedules.vision.keys import ordered_words

__all__ = ["first_elements", "unique"]


def unique(dtype: str, *, in_order: bool) -> Kernel:
    """Build the kernel of the distinct elements, from an argsort.

    Parameters
    ----------
    dtype : str
    in_order : bool
        Whether they come in ascending order; else in that of their first occurrence.

    Returns
    -------
    Kernel
        ``(data, order, values, first, inverse, counts, total)``: `order` is the stable argsort of
        `data`; of `values`, `first` and `counts` the first ``total[0]`` elements count.
    """
    length = tirx.Var("length", "int64")
    one, none = tirx.const(1, "int64"), tirx.const(0, "int64")

    def body(
        data: Any, order: Any, values: Any, first: Any, inverse: Any, counts: Any, total: Any
    ) -> None:
        def position(rank: Any) -> tirx.Expr:
            return order[rank].astype("int64")

        def opens(rank: tirx.Expr) -> tirx.Expr:
            """Return whether a run of equal elements begins at a rank."""
            here, before = (
                ordered_words(data[position(at)], dtype, False)
                for at in (rank, tirx.max(rank - 1, 0))
            )
            return tirx.any(rank == 0, *(a != b for a, b in zip(here, before, strict=True)))

        group = register(tirx.const(-1, "int64"))
        with T.serial(0, length) as rank:
            at = T.Bind(position(rank))
            with when(opens(rank)):
                group[0] = group[0] + 1
                first[group[0]] = at  # the sort is stable: it is the first
                counts[group[0]] = none
                values[group[0]] = data[at]
            inverse[at] = group[0]
            counts[group[0]] = counts[group[0]] + one
        total[0] = group[0] + 1
        if not in_order:
            _by_occurrence(data, length, values, first, inverse, counts)

    shape = [length]
    outputs = [(shape, dtype), *[(shape, "int64")] * 3, ([1], "int64")]
    return function([(shape, dtype), (shape, "int32")], outputs, body)


def _by_occurrence(
    data: Any, length: tirx.Expr, values: Any, first: Any, inverse: Any, counts: Any
) -> None:
    """Renumber the runs in the order in which their elements come.

    Where a run is first met its old number is replaced; later elements find the new one at the
    position of the first.
    """
    old_first, old_counts = (T.buffer_proxy(T.decl_buffer([length], "int64")) for _ in range(2))
    with T.serial(0, length) as i:
        old_first[i] = first[i]
        old_counts[i] = counts[i]
    met = register(tirx.const(0, "int64"))
    with T.serial(0, length) as at:
        group = T.Bind(inverse[at])
        start = T.Bind(old_first[group])
        with T.If(start == at):
            with T.Then():
                values[met[0]] = data[at]
                first[met[0]] = at
                counts[met[0]] = old_counts[group]
                inverse[at] = met[0]
                met[0] = met[0] + 1
            with T.Else():
                inverse[at] = inverse[start]


def first_elements(dtype: str) -> Kernel:
    """Build the kernel ``(data[n], result[m])`` of the first `m` elements."""
    length, many = tirx.Var("length", "int64"), tirx.Var("many", "int64")

    def body(data: Any, result: Any) -> None:
        with T.serial(0, many) as i:
            result[i] = data[i]

    return function([([length], dtype)], [([many], dtype)], body)
