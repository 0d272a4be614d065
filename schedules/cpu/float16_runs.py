"""Marks of reductions whose products of float16 are added up in float16.

What they ask for is done after scheduling, see
:mod:`tvm_edge.schedules.cpu.float16_partial_sums`.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.float16 import as_stored

__all__ = [
    "LONGEST",
    "SHORT",
    "bounds",
    "can_run",
    "fills_float16",
    "has_runs",
    "lengths_of",
    "multiplies_float16",
    "read_float16",
    "reduced_in_float16",
    "run_length",
    "shuffles",
    "split_runs",
    "stored_in_float16",
]

SHORT, LONGEST = 16, 96
"""Products that are added up one by one in float16, and those whose sums are before float32.

An addition rounds by as much as the sum is large: of 64 or 96 products in runs of 16 the error is
0.4 of that of 128 one by one, and 0.8 of that of 32 one by one. Beside 100 multiply-adds on x86,
where an addition to float32 takes seven instructions, are 17 instructions for 64, 14 for 96, and 22
for 32 one by one.
"""

_RUNS = "tvm_edge.float16_runs"


def multiplies_float16(func: tirx.PrimFunc, spec: DeviceSpec) -> bool:
    """Return whether products of a kernel may be added up in float16, by an instruction of that."""
    asked = func.attrs is not None and str(func.attrs.get(PRECISION, "")) == "float16"
    return asked and spec.float16


def fills_float16(lanes: int, spec: DeviceSpec) -> bool:
    """Return whether blocks of so many channels are worth vectors of float16.

    Arm's elements are those of whole vectors; on x86 half a vector of float16 has no less lanes
    than a whole one of float32.
    """
    return lanes % spec.lanes(2 if spec.multiplies_by_element else 4) == 0


def run_length(spec: DeviceSpec) -> int:
    """Return the products of a dense convolution that are added up one by one.

    NEON has a quarter of x86's lanes: to add to what is not in registers takes it a quarter more
    instructions with runs of 16 (counted by ``arm_mca``), and an eighth with runs of 32.
    """
    return 2 * SHORT if spec.multiplies_by_element else SHORT


def shuffles(numbers: int, vectors: int) -> int:
    """Return the instructions that put numbers of float16 into all lanes, on x86.

    A multiply-add does that itself with a number of memory. What several of them need, for as many
    vectors, LLVM loads once, and shuffles it on a port that multiplies as well.
    """
    return numbers if vectors > 1 else 0


def split_runs(sch: Schedule, block: SBlockRV, short: int = 0) -> bool:
    """Have the products of a reduction added up in runs.

    Of `short` products, and not :data:`SHORT`, where that is not 0.

    Returns
    -------
    bool
        Whether its operands are of float16, as they are stored.
    """
    if reduced_in_float16(sch.get(block)) is None:
        return False
    sch.annotate(block, _RUNS, f"{short or SHORT} {LONGEST}")
    return True


def lengths_of(block: s_tir.SBlock) -> list[int]:
    """Return the products of a run, and of those whose sums are added up in float16."""
    return [int(length) for length in str(block.annotations[_RUNS]).split()]


def bounds(block: s_tir.SBlock) -> bool:
    """Return whether a reduction finds a largest or smallest element, which rounds nothing."""
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    return isinstance(value, (tirx.Max, tirx.Min))


def can_run(block: s_tir.SBlock) -> bool:
    """Return whether a reduction adds up products, or is a bound, whatever the type."""
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    return bounds(block) or (isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul))


def has_runs(block: s_tir.SBlock) -> bool:
    """Return whether a reduction is added up in runs."""
    return _RUNS in block.annotations


def read_float16(sch: Schedule, stage: SBlockRV | None) -> SBlockRV | None:
    """Have a reduction read its image in float16: the one that is stored, or a copy.

    Parameters
    ----------
    sch : Schedule
    stage : SBlockRV or None
        The block that makes a copy for the reduction, if one does.

    Returns
    -------
    SBlockRV or None
        The block that makes the copy, if there still is one.
    """
    if stage is None:
        return None
    store = sch.get(stage).body
    value = as_stored(store.value)
    if value is None:
        return stage
    own = [var.var for var in sch.get(stage).iter_vars]
    if isinstance(value, ir.TensorLoad) and all(
        one.same_as(var) for one, var in zip(value.indices, own, strict=True)
    ):
        sch.compute_inline(stage)
        return None
    sch.unsafe_set_dtype(stage, 0, "float16")
    return stage


def reduced_in_float16(block: s_tir.SBlock) -> Callable[[tirx.Expr], tirx.Expr] | None:
    """Return what a reduction of float16 makes of an accumulator, in float16."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != "float32":
        return None
    value = store.value
    if isinstance(value, (tirx.Max, tirx.Min)):
        bound, kind = as_stored(value.b), type(value)
        return None if bound is None else lambda own: kind(own, bound)
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    left, right = as_stored(value.b.a), as_stored(value.b.b)
    return None if left is None or right is None else lambda own: own + left * right


def stored_in_float16(node: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """Return a block that stores a float16 as it is where it was widened and rounded again."""
    block, store = node.block, node.block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Cast):
        return node
    value = as_stored(store.value.value)
    if value is None or str(store.buffer.dtype) != "float16":
        return node
    made = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, value, store.indices),
        annotations=block.annotations,
    )
    return s_tir.SBlockRealize(node.iter_values, node.predicate, made)
