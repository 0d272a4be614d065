"""Properties of every rule: deterministic, quick, indices narrowed only where they fit."""

from __future__ import annotations

import time

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.script import tirx as T

from tests.schedules.graphs import network
from tests.schedules.harness import AVX512, Graph, kernels_of, loop_kinds
from tvm_edge.schedules.accesses import trailing_contiguous
from tvm_edge.schedules.analysis import narrow_indices
from tvm_edge.schedules.cpu import RULES, schedule


def test_each_kernel_of_a_network_finds_its_rule() -> None:
    found = {kernel.name: kernel.scheduled.rule for kernel in kernels_of(network().model())}
    convs = {rule for name, rule in found.items() if "conv2d" in name}
    assert convs == {"conv2d", "depthwise"}
    assert found["max_pool2d"] == "pool"
    assert found["mean"] == "reduce"
    assert found["softmax"] == "reduce"
    assert "dense" in found.values()
    assert "fallback" not in found.values()


def test_schedules_are_the_same_every_time() -> None:
    first, second = (kernels_of(network().model()) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.name == b.name
        assert tvm_ffi.structural_equal(a.scheduled.func, b.scheduled.func), a.name


def test_scheduling_is_quick() -> None:
    kernels = kernels_of(network().model())
    start = time.thread_time()
    for kernel in kernels:
        schedule(kernel.func, AVX512)
    # Some 20 ms a kernel; what runs beside it on the machine is not counted.
    assert (time.thread_time() - start) / len(kernels) < 0.2


def test_rules_decide_by_structure_not_by_name() -> None:
    graph = Graph()
    graph.output(graph.op("Conv", graph.input(1, 8, 14, 14), graph.input(8, 8, 3, 3)))
    (kernel,) = kernels_of(graph.model())
    renamed = str(kernel.func.script()).replace("conv2d_nchw", "quite_another_name")
    func = tvm.script.from_source(renamed)
    assert schedule(func, AVX512).rule == "conv2d"


def test_rule_names_are_unique_and_the_last_is_the_fallback() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert [rule.origin for rule in RULES[:-1]] == ["heuristic"] * (len(RULES) - 1)
    assert RULES[-1].origin == "fallback"


# ------------------------------------------------------------------------------------- analysis


@T.prim_func(s_tir=True)
def huge(
    a: T.Buffer((T.int64(3), T.int64(1 << 30)), "int8"),
    b: T.Buffer((T.int64(3), T.int64(1 << 30)), "int8"),
):
    for i, j in T.grid(T.int64(3), T.int64(1 << 30)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj]


@T.prim_func(s_tir=True)
def rows(
    a: T.Buffer((T.int64(6), T.int64(8)), "float32"),
    scale: T.Buffer((T.int64(8),), "float32"),
    b: T.Buffer((T.int64(6), T.int64(8)), "float32"),
):
    for i, j in T.grid(T.int64(6), T.int64(8)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * scale[vj]


@T.prim_func(s_tir=True)
def whole(
    a: T.Buffer((T.int64(6), T.int64(8)), "float32"),
    b: T.Buffer((T.int64(6), T.int64(8)), "float32"),
):
    for i, j in T.grid(T.int64(6), T.int64(8)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] + T.float32(1)


@T.prim_func(s_tir=True)
def turned(
    a: T.Buffer((T.int64(8), T.int64(6)), "float32"),
    b: T.Buffer((T.int64(6), T.int64(8)), "float32"),
):
    for i, j in T.grid(T.int64(6), T.int64(8)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vj, vi]


def test_indices_are_narrowed_where_they_fit() -> None:
    assert narrow_indices(huge) is huge
    assert narrow_indices(rows).body.block.body.loop_var.ty.dtype == "int32"


def test_contiguous_axes() -> None:
    def axes(func: tirx.PrimFunc) -> int:
        sch = s_tir.Schedule(func)
        return trailing_contiguous(sch.get(sch.get_sblock("b")))

    assert axes(whole) == 2
    assert axes(rows) == 1  # the scale starts again with every row
    assert axes(turned) == 0


def test_huge_tensors_are_scheduled_with_wide_indices() -> None:
    func = schedule(huge, AVX512).func
    assert {tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED} <= set(loop_kinds(func))
