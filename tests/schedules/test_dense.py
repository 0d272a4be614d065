"""Matrix products against ONNX Runtime and NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, s_tir, te, tirx

from tests.marks import in_full
from tests.schedules.harness import (
    AVX2,
    AVX512,
    NEON,
    SPECS,
    Graph,
    assert_close,
    assert_register_tile,
    assert_scheduled,
    block_names,
    check,
    kernels_of,
    rules,
    run,
    scalar_lanes,
    sweep,
    this_cpu,
)
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu.panel_tiles import panel_width
from tvm_edge.schedules.panels import dense, pack_matrix

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")

sizes = st.one_of(st.integers(1, 20), st.sampled_from([31, 64, 100, 129, 257]))
products = st.tuples(
    st.sampled_from(["Gemm", "GemmT", "MatMul", "BatchMatMul"]), sizes, sizes, sizes, st.booleans()
)


def build(graph: Graph, kind: str, m: int, k: int, n: int, relu: bool) -> None:
    """Add a matrix product to a graph."""
    if kind == "BatchMatMul":
        result = graph.op("MatMul", graph.input(2, 3, m, k), graph.input(2, 3, k, n))
    elif kind == "MatMul":
        result = graph.op("MatMul", graph.input(m, k), graph.input(k, n))
    else:
        weight = graph.input(n, k) if kind == "GemmT" else graph.input(k, n)
        transposed = int(kind == "GemmT")
        result = graph.op("Gemm", graph.input(m, k), weight, graph.input(n), transB=transposed)
    graph.output(graph.op("Relu", result) if relu else result)


def only(one: DeviceSpec) -> list[Any]:
    """The CPU of which ``make test`` runs a test; the others are left to ``make test-full``."""
    return [one, *in_full(*(spec for spec in SPECS if spec is not one))]


@given(st.lists(products, min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(2)
def test_any_product_agrees_with_onnxruntime(
    cases: list[tuple[str, int, int, int, bool]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for case in cases:
        build(graph, *case)
    check(graph, spec)


@pytest.mark.parametrize("spec", only(AVX512), ids=lambda spec: spec.name)
def test_products_of_a_network_get_the_template(spec: DeviceSpec) -> None:
    graph = Graph()
    for m, k, n in [
        (1, 1280, 3000),
        (1, 515, 4097),
        (3, 1031, 1000),
        (8, 120, 1009),
        (40, 70, 90),
    ]:
        build(graph, "Gemm", m, k, n, True)
    build(graph, "BatchMatMul", 33, 64, 50, False)
    kernels = check(graph, spec)
    assert rules(kernels) == ["dense"] * 6
    for kernel in kernels:
        assert_register_tile(kernel.scheduled.func)


@pytest.mark.parametrize("spec", only(NEON), ids=lambda spec: spec.name)
def test_cores_share_the_rows_of_a_narrow_matrix(spec: DeviceSpec) -> None:
    # Half a row of 1000 columns is less than a page of memory, after which prefetchers start anew:
    # 12 instead of 16 GB/s a core.
    graph = Graph()
    for m, k, n in [(1, 2048, 1000), (1, 1036, 1001), (3, 1032, 1000), (4, 600, 1009)]:
        build(graph, "Gemm", m, k, n, True)
    kernels = check(graph, spec)
    assert rules(kernels) == ["dense"] * 4
    for kernel in kernels:
        sch = tvm.s_tir.Schedule(kernel.scheduled.func)
        outermost, *_ = sch.get_loops(sch.get_sblock("matmul_rf_update"))
        assert sch.get(outermost).kind == tirx.ForKind.PARALLEL
        assert int(sch.get(outermost).extent) == spec.cores
        assert not scalar_lanes(kernel.scheduled.func)


@pytest.mark.parametrize("spec", only(AVX512), ids=lambda spec: spec.name)
def test_cores_share_a_matrix_that_one_cache_holds(spec: DeviceSpec) -> None:
    # Else a product of one row is a single task: 9.9 instead of 4.6 µs for 1x1536x128.
    graph = Graph()
    for m, k, n in [(1, 1536, 128), (1, 1025, 140), (2, 515, 191)]:
        build(graph, "Gemm", m, k, n, True)
    kernels = check(graph, spec)
    assert rules(kernels) == ["dense"] * 3
    for kernel in kernels:
        sch = tvm.s_tir.Schedule(kernel.scheduled.func)
        names = block_names(kernel.scheduled.func)
        name = "matmul_rf_update" if "matmul_rf_update" in names else "matmul_update"
        outermost, *_ = sch.get_loops(sch.get_sblock(name))
        assert sch.get(outermost).kind == tirx.ForKind.PARALLEL
        assert int(sch.get(outermost).extent) >= spec.cores


@pytest.mark.parametrize("spec", only(AVX2), ids=lambda spec: spec.name)
def test_many_rows_go_over_panels_of_the_matrix(spec: DeviceSpec) -> None:
    # Remainders of rows and columns, panels of whole matrices and of batches, tall products that
    # are cut by rows, long ones summed in parts.
    graph = Graph()
    for m, k, n in [(31, 70, 96), (197, 64, 97), (49, 3000, 64), (49, 3000, 97), (700, 36, 40)]:
        build(graph, "Gemm", m, k, n, True)
    build(graph, "BatchMatMul", 31, 64, 97, False)
    graph.output(graph.op("MatMul", graph.input(2, 3, 40, 36), graph.input(36, 64)))
    kernels = check(graph, spec)
    assert rules(kernels) == ["dense"] * 7
    for kernel in kernels:
        assert any("global" in name for name in block_names(kernel.scheduled.func)), kernel.name
        assert not scalar_lanes(kernel.scheduled.func), kernel.name


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [((6,), 400, 64), ((8,), 300, 1000), ((65,), 90, 33), ((23, 1), 70, 64), ((3, 9, 2), 64, 96)],
    ids=str,
)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_matrix_packed_in_advance(rows: tuple[int, ...], k: int, n: int, spec: DeviceSpec) -> None:
    kernel = _packed(rows, k, n, spec)
    assert_register_tile(kernel.scheduled.func)
    assert _tile_rows(kernel.scheduled.func) >= 3  # that share what is loaded of a panel
    assert not scalar_lanes(kernel.scheduled.func)


@pytest.mark.parametrize(("rows", "k", "n"), [(240, 150, 161), (203, 140, 96), (120, 150, 99)])
def test_cores_share_rows_that_no_cache_holds(rows: int, k: int, n: int) -> None:
    # Else every panel reads all rows again: 4.2 instead of 1.0 ms for 3136x384x96 at AVX2.
    spec = replace(AVX2, cores=2, l2_cache=1 << 16)
    func = _packed((rows,), k, n, spec).scheduled.func
    sch = s_tir.Schedule(func)
    (name,) = (name for name in block_names(func) if name.endswith("_update"))
    tasks, _, strips, *_ = (sch.get(loop) for loop in sch.get_loops(sch.get_sblock(name)))
    assert tasks.kind == tirx.ForKind.PARALLEL
    chunk = int(strips.extent) * _tile_rows(func)
    assert chunk * k * 4 <= spec.l2_cache // 4
    assert rows // chunk % spec.cores == 0  # whole chunks: the same for each core


@pytest.mark.parametrize("rows", [1, 7])
def test_one_core_takes_panels_of_which_the_last_is_incomplete(rows: int) -> None:
    _packed((rows,), 64, 97, replace(AVX2, cores=1))


def _packed(rows: Sequence[int], k: int, n: int, spec: DeviceSpec) -> Any:
    """Return the kernel of a product with a packed matrix, whose result is right."""
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(s).astype("float32") for s in ((*rows, k), (k, n), (n,)))
    panels = pack_matrix(w, panel_width(math.prod(rows), n, spec))
    builder = relax.BlockBuilder()
    arrays = {"x": x, "w": panels, "b": b}
    parameters = [
        relax.Var(name, relax.TensorType(value.shape, "float32")) for name, value in arrays.items()
    ]

    def compute(x: te.Tensor, w: te.Tensor, b: te.Tensor) -> te.Tensor:
        product = dense(x, w, n)
        return te.compute((*rows, n), lambda *i: te.max(product(*i) + b(i[-1]), 0.0))

    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(compute, *parameters))
        builder.emit_func_output(result)
    (result,), (kernel,) = run(builder.get(), arrays, spec)
    assert_close(result, np.maximum(x @ w + b, 0))
    assert kernel.scheduled.rule == "dense"
    return kernel


def _tile_rows(func: tirx.PrimFunc) -> int:
    """Rows of the left operand in a register tile."""
    sch = s_tir.Schedule(func)
    (name,) = (name for name in block_names(func) if name.endswith("_update"))
    *_, row, _, _ = sch.get_loops(sch.get_sblock(name))
    assert sch.get(row).kind == tirx.ForKind.UNROLLED
    return int(sch.get(row).extent)


def test_stripes_of_a_matrix_do_not_overlap() -> None:
    # 1500 columns a core are not whole vectors. TVM rounds the epilogue's share up unless
    # kept from it, and the cores race for the columns between: wrong every third run.
    graph = Graph()
    build(graph, "Gemm", 1, 1280, 3000, False)
    (kernel,) = (k for k in kernels_of(graph.model()) if k.scheduled.rule == "dense")
    w, x, b = graph.values.values()  # inputs in the order of their creation
    library = tvm.compile(
        kernel.scheduled.func.with_attr("global_symbol", "main"), target=this_cpu()
    )
    names = [param.name for param in kernel.func.params[:-1]]
    tensors = [tvm.runtime.tensor(graph.values[name]) for name in names]
    for _ in range(100):
        result = tvm.runtime.empty((1, 3000), "float32")
        library["main"](*tensors, result)
        assert_close(result.numpy(), x @ w + b)


def row_product(m: int, k: int, n: int) -> tvm.IRModule:
    """``relu(x @ w.T + b)`` in one function, with `w` stored [N, K].

    The ONNX importer transposes the matrix in a kernel of its own.
    """
    builder = relax.BlockBuilder()
    x, w, b = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (m, k)), ("w", (n, k)), ("b", (n,)))
    )

    def compute(x: te.Tensor, w: te.Tensor, b: te.Tensor) -> te.Tensor:
        axis = te.reduce_axis((0, k), "k")
        product = te.compute((m, n), lambda i, j: te.sum(x[i, axis] * w[j, axis], axis=axis))
        return te.compute((m, n), lambda i, j: te.max(product[i, j] + b[j], 0.0))

    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(compute, x, w, b))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    "shape", [(1, 512, 100), (1, 515, 1001), (7, 100, 12), (24, 333, 65)], ids=str
)
def test_matrix_stored_by_rows(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(s).astype("float32") for s in ((m, k), (n, k), (n,)))
    (result,), kernels = run(row_product(*shape), {"x": x, "w": w, "b": b})
    assert_close(result, np.maximum(x @ w.T + b, 0))
    assert rules(kernels) == ["dense"]
    assert_scheduled(kernels[0], AVX512)
