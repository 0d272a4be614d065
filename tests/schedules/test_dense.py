"""Matrix products against ONNX Runtime and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, te

from tests.schedules.harness import (
    AVX512,
    SPECS,
    Graph,
    assert_close,
    assert_register_tile,
    assert_scheduled,
    check,
    kernels_of,
    rules,
    run,
    sweep,
    this_cpu,
)
from tvm_edge.hardware import DeviceSpec

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


@given(st.lists(products, min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_product_agrees_with_onnxruntime(
    cases: list[tuple[str, int, int, int, bool]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for case in cases:
        build(graph, *case)
    check(graph, spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_products_of_a_network_get_the_template(spec: DeviceSpec) -> None:
    graph = Graph()
    for m, k, n in [
        (1, 2048, 1000),
        (1, 1030, 1001),
        (3, 1031, 1000),
        (2, 600, 1009),
        (40, 70, 90),
    ]:
        build(graph, "Gemm", m, k, n, True)
    build(graph, "BatchMatMul", 33, 64, 50, False)
    kernels = check(graph, spec)
    assert rules(kernels) == ["dense"] * 6
    for kernel in kernels:
        assert_register_tile(kernel.scheduled.func)


def test_stripes_of_a_matrix_do_not_overlap() -> None:
    # 500 columns a core are not whole vectors. TVM rounds the epilogue's share up to 512 unless
    # kept from it, and the cores race for the columns between: wrong every third run.
    graph = Graph()
    build(graph, "Gemm", 1, 1280, 1000, False)
    (kernel,) = (k for k in kernels_of(graph.model()) if k.scheduled.rule == "dense")
    w, x, b = graph.values.values()  # inputs in the order of their creation
    library = tvm.compile(
        kernel.scheduled.func.with_attr("global_symbol", "main"), target=this_cpu()
    )
    names = [param.name for param in kernel.func.params[:-1]]
    tensors = [tvm.runtime.tensor(graph.values[name]) for name in names]
    for _ in range(100):
        result = tvm.runtime.empty((1, 1000), "float32")
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
