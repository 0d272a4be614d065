"""Passes for kernels whose shapes only the run tells."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_edge.lowering.check_lengths import CheckElements
from tvm_edge.lowering.empty_launches import GuardEmptyLaunches
from tvm_edge.lowering.plain_divisions import PlainDivisions
from tvm_edge.lowering.task_places import TaskPlaces
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.open_lengths import narrow_open, with_wide_scalars


@T.prim_func(s_tir=True)
def launched(a: T.handle, n: T.int32, m: T.int32) -> None:
    A = T.match_buffer(a, (n, m), "float32")
    x = T.launch_thread("blockIdx.x", n)
    y = T.launch_thread("blockIdx.y", m // 4)
    item = T.launch_thread("threadIdx.x", 4)
    A[x, (y * 4 + item - 1) % m] = T.float32(0)
    A[(x * m + y) // m, (x * m + y) % m] = T.float32(1)


@T.prim_func(s_tir=True)
def mapped(a: T.handle, h: T.int64, b: T.handle) -> None:
    n = T.int64()
    A = T.match_buffer(a, (n, (h - 1) // 2 + 1), "float32")
    B = T.match_buffer(b, (n, (h - 1) // 2 + 1), "float32")
    for i, j in T.grid(n, (h - 1) // 2 + 1):
        with T.sblock("x"):
            v, w = T.axis.remap("SS", [i, j])
            B[v, w] = A[v, w] + T.float32(1)


@T.prim_func(s_tir=True)
def tasks(a: T.handle, n: T.int32, m: T.int32, other: T.int32) -> None:
    A = T.match_buffer(a, (n, m, 8), "float32")
    for task in T.parallel(n * m):
        for i in range(8):
            if task % m < i:
                A[task // m, task % m, i] = T.float32(0)
            if other > 0:
                A[(task + i) // m, task // other, task // 8] = T.float32(1)


def after(passed: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
    return passed(tvm.IRModule({"main": func}))["main"]


def test_a_launch_has_one_guard_around_all_of_its_axes() -> None:
    made = after(GuardEmptyLaunches(), launched)
    (guard,) = nodes_in(made.body, tirx.IfThenElse)
    assert len(nodes_in(guard.condition, tirx.GT)) == 2
    assert len(nodes_in(guard.then_case, tirx.AttrStmt)) == 3


def test_launches_of_known_sizes_have_no_guard() -> None:
    n, m = launched.params[1:]
    known = launched.specialize({n: T.int32(3), m: T.int32(8)})
    assert not nodes_in(after(GuardEmptyLaunches(), known).body, tirx.IfThenElse)


def test_only_what_is_not_negative_is_divided_towards_zero() -> None:
    """``(y * 4 + item - 1) % m`` wraps around at the first element."""
    made = after(PlainDivisions(), launched)
    (wrapping,) = nodes_in(made.body, tirx.FloorMod)
    assert "- 1" in str(wrapping)
    assert len(nodes_in(made.body, tirx.Mod)) == 1 and not nodes_in(made.body, tirx.FloorDiv)
    n, m = launched.params[1:]
    known = launched.specialize({n: T.int32(3), m: T.int32(8)})
    assert not nodes_in(after(PlainDivisions(), known).body, tirx.Mod)


def test_a_task_is_divided_once() -> None:
    """By lengths of its loop: another one may be 0, which a condition tells."""
    made = after(TaskPlaces(), tasks)
    (loop, _) = reversed(nodes_in(made.body, tirx.For))
    places = nodes_in(loop.body, tirx.Bind)
    assert sorted(str(bind.value) for bind in places) == ["task % m", "task // m"]
    (inner,) = nodes_in(loop.body, tirx.For)
    left = nodes_in(inner, tirx.FloorDiv, tirx.FloorMod)
    assert sorted(map(str, left)) == ["(task + i) // m", "task // 8", "task // other"]


def test_lengths_by_value_have_64_bits_for_callers_and_32_in_loops() -> None:
    narrow = narrow_open(mapped)
    assert {str(v.ty.dtype) for v in nodes_in(narrow.body, tirx.Var) if "int" in str(v.ty)} == {
        "int32"
    }
    wide = with_wide_scalars(narrow)
    assert [str(param.ty.dtype) for param in wide.params[1:2]] == ["int64"]
    checked = after(CheckElements(), wide)
    # One for the shape that both tensors have, one for the length.
    assert len(nodes_in(checked.body, tirx.AssertStmt)) == 2
