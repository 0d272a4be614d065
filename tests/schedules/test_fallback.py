"""The last rule takes whatever there is, and leaves alone what it must not touch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto
from tvm import tirx
from tvm.script import tirx as T

from tests.schedules.harness import (
    AVX512,
    SPECS,
    Graph,
    assert_close,
    call,
    check,
    loop_kinds,
    rules,
    scalar_lanes,
)
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu import schedule

# ------------------------------------------------------------------- functions of no known shape


@T.prim_func(s_tir=True)
def without_blocks(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in T.parallel(64):
        b[i] = a[i] + T.float32(1)


@T.prim_func(s_tir=True)
def already_parallel(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32")):
    for i in T.parallel(64):
        for j in range(64):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] + T.float32(1)


@T.prim_func(s_tir=True)
def extern_call(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    with T.sblock("extern"):
        T.reads(a[0:64])
        T.writes(b[0:64])
        T.evaluate(T.call_packed("some.function", a.data, b.data))


@T.prim_func(s_tir=True)
def loop_inside_a_block(a: T.Buffer((64, 9), "float32"), b: T.Buffer((64, 9), "float32")):
    for i in range(64):
        with T.sblock("scan"):
            vi = T.axis.spatial(64, i)
            T.reads(a[vi, 0:9])
            T.writes(b[vi, 0:9])
            b[vi, 0] = a[vi, 0]
            for j in range(8):
                b[vi, j + 1] = b[vi, j] + a[vi, j + 1]


@T.prim_func(s_tir=True)
def nested_blocks(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(8):
        with T.sblock("outer"):
            vi = T.axis.spatial(8, i)
            T.reads(a[vi * 8 : vi * 8 + 8])
            T.writes(b[vi * 8 : vi * 8 + 8])
            for j in range(8):
                with T.sblock("inner"):
                    vj = T.axis.spatial(8, j)
                    b[vi * 8 + vj] = a[vi * 8 + vj]


@T.prim_func(s_tir=True)
def two_blocks_in_a_loop(a: T.Buffer((64, 512), "float32"), b: T.Buffer((64, 512), "float32")):
    c = T.sblock_alloc_buffer((64, 512))
    for i in range(64):
        for j in range(512):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                c[vi, vj] = a[vi, vj] * T.float32(2)
        for j in range(512):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = c[vi, 511 - vj]


UNTOUCHED = [
    without_blocks,
    already_parallel,
    extern_call,
    loop_inside_a_block,
    nested_blocks,
    two_blocks_in_a_loop,
]


@pytest.mark.parametrize("func", UNTOUCHED, ids=lambda func: func.attrs["global_symbol"])
def test_finished_and_foreign_code_keeps_its_form(func: tirx.PrimFunc) -> None:
    scheduled = schedule(func, AVX512)
    assert (scheduled.rule, scheduled.origin) == ("fallback", "fallback")
    assert loop_kinds(scheduled.func) == loop_kinds(func)


@T.prim_func(s_tir=True)
def empty(a: T.Buffer((0, 8), "float32"), b: T.Buffer((0, 8), "float32")):
    for i, j in T.grid(0, 8):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] + T.float32(1)


@T.prim_func(s_tir=True)
def empty_reduction(a: T.Buffer((4, 0), "float32"), b: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 0):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = T.float32(0)
            b[vi] = b[vi] + a[vi, vk]


@T.prim_func(s_tir=True)
def plain_beside_opaque(a: T.Buffer((64, 512), "float32"), b: T.Buffer((64, 512), "float32")):
    c = T.sblock_alloc_buffer((64, 512))
    for i, j in T.grid(64, 512):
        with T.sblock("c"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi, vj] = a[vi, vj] * T.float32(2)
    with T.sblock("extern"):
        T.reads(c[0:64, 0:512])
        T.writes(b[0:64, 0:512])
        T.evaluate(T.call_packed("some.function", c.data, b.data))


@pytest.mark.parametrize("func", [empty, empty_reduction], ids=["spatial", "reduction"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_empty_loops_are_left_alone(func: tirx.PrimFunc, spec: DeviceSpec) -> None:
    assert set(loop_kinds(schedule(func, spec).func)) == {tirx.ForKind.SERIAL}


def test_plain_blocks_beside_opaque_ones_are_scheduled() -> None:
    scheduled = schedule(plain_beside_opaque, AVX512)
    assert scheduled.rule == "fallback"
    assert {tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED} <= set(loop_kinds(scheduled.func))


@pytest.mark.parametrize(
    "func", [*UNTOUCHED, empty, empty_reduction], ids=lambda func: func.attrs["global_symbol"]
)
def test_name_and_attributes_stay(func: tirx.PrimFunc) -> None:
    marked = func.with_attr("tirx.noalias", True).with_attr("op_pattern", 4)
    assert dict(schedule(marked, AVX512).func.attrs) == dict(marked.attrs)


@T.prim_func(s_tir=True)
def two_sums(a: T.Buffer((64, 30, 50), "float32"), b: T.Buffer((64, 50), "float32")):
    total = T.sblock_alloc_buffer((64, 50))
    largest = T.sblock_alloc_buffer((64, 50))
    for i, j, k in T.grid(64, 50, 30):
        with T.sblock("total"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                total[vi, vj] = T.float32(0)
            total[vi, vj] = total[vi, vj] + a[vi, vk, vj]
    for i, j, k in T.grid(64, 50, 30):
        with T.sblock("largest"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                largest[vi, vj] = T.float32(-1e9)
            largest[vi, vj] = T.max(largest[vi, vj], a[vi, vk, vj])
    for i, j in T.grid(64, 50):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = total[vi, vj] + largest[vi, vj]


@T.prim_func(s_tir=True)
def columns_first(a: T.Buffer((64, 30, 50), "float32"), b: T.Buffer((64, 30, 64), "float32")):
    for w, c, h in T.grid(64, 64, 30):
        with T.sblock("b"):
            vw, vc, vh = T.axis.remap("SSS", [w, c, h])
            b[vc, vh, vw] = T.if_then_else(
                2 <= vw and vw < 52, a[vc, vh, vw - 2], T.float32(0), dtype="float32"
            )


@T.prim_func(s_tir=True)
def slanted(a: T.Buffer((64, 30, 50), "float32"), b: T.Buffer((64, 30, 50), "float32")):
    for c, h, w in T.grid(64, 30, 50):
        with T.sblock("b"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            b[vc, vh, vw] = T.if_then_else(
                vh + vw < 40, a[vc, vh, vw], T.float32(0), dtype="float32"
            )


@pytest.mark.parametrize(
    ("func", "reference"),
    [
        (two_sums, lambda a: a.sum(1) + a.max(1)),
        (columns_first, lambda a: np.pad(a, ((0, 0), (0, 0), (2, 12)))),
    ],
    ids=["two reductions with one reader", "loops in another order than memory"],
)
def test_functions_no_operator_makes(
    func: tirx.PrimFunc, reference: Callable[[np.ndarray], np.ndarray]
) -> None:
    scheduled = schedule(func, AVX512)
    assert tirx.ForKind.VECTORIZED in loop_kinds(scheduled.func)
    assert not scalar_lanes(scheduled.func)
    data = np.random.default_rng(0).standard_normal((64, 30, 50)).astype("float32")
    expected = reference(data)
    assert_close(call(scheduled.func, data, np.empty_like(expected)), expected)


def test_a_slanted_border_is_left_to_llvm() -> None:
    # Peeled along one axis, its extent would depend on the other: TVM cannot vectorise that.
    data = np.random.default_rng(0).standard_normal((64, 30, 50)).astype("float32")
    scheduled = schedule(slanted, AVX512).func
    inside = np.add.outer(np.arange(30), np.arange(50)) < 40
    assert_close(call(scheduled, data, np.empty_like(data)), data * inside)
    assert tirx.ForKind.PARALLEL in loop_kinds(scheduled)


# --------------------------------------------------------------------- operators without template


def top_k(graph: Graph) -> None:
    values, indices = graph.ops("TopK", 2, graph.input(4, 300), graph.constant(np.array([5])))
    graph.output(values)
    graph.output(indices, TensorProto.INT64)


def suppression(graph: Graph) -> None:
    random = np.random.default_rng(0)
    corner, size = random.random((2, 1, 50, 2), dtype="float32")
    graph.output(
        graph.op(
            "NonMaxSuppression",
            graph.given(np.concatenate([corner, corner + size], -1)),
            graph.given(random.random((1, 2, 50), dtype="float32")),
            *(graph.constant(np.array([v])) for v in (5, 0.5, 0.1)),
        ),
        TensorProto.INT64,
    )


OPERATORS = {
    "cumulative sum": lambda g: g.output(g.op("CumSum", g.input(3, 50, 71), g.constant(1))),
    "top k": top_k,
    "non-maximum suppression": suppression,
    "scatter": lambda g: g.output(
        g.op("ScatterElements", g.input(10, 20), g.input(3, 20, dtype="int64"), g.input(3, 20))
    ),
    "scatter nd": lambda g: g.output(
        g.op("ScatterND", g.input(10, 20), g.input(3, 1, dtype="int64"), g.input(3, 20))
    ),
    "arg-maximum of a row": lambda g: g.output(
        g.op("ArgMax", g.input(300, 1000), axis=1), TensorProto.INT64
    ),
    "convolution of any size": lambda g: g.output(
        g.op("Conv", g.input(1, 8, 30, 33, symbolic="??hw"), g.input(16, 8, 3, 3), pads=[1] * 4)
    ),
}


@pytest.mark.parametrize("build", OPERATORS.values(), ids=OPERATORS)
def test_operators_without_a_template_are_right(build: Callable[[Graph], None]) -> None:
    graph = Graph()
    build(graph)
    assert "fallback" in rules(check(graph))
