"""Kernels without a reduction, of any type and shape, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from tvm import ir, s_tir, te, tirx

from tests.schedules.harness import (
    _VECTORIZE,
    SPECS,
    Graph,
    block_names,
    call,
    check,
    rules,
    scalar_lanes,
    sweep,
    this_cpu,
)
from tvm_edge.hardware import DeviceSpec
from tvm_edge.lowering.cpu_functions import expand_functions
from tvm_edge.schedules.blocked import unpack_image
from tvm_edge.schedules.cpu import schedule

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


def vector_indices(func: tirx.PrimFunc) -> list[tirx.Expr]:
    """Where a lowered kernel loads and stores vectors."""
    main = func.with_attr({"target": this_cpu(), "global_symbol": "main"})
    lowered = _VECTORIZE(tvm.IRModule({"main": main}))["main"]
    found: list[tirx.Expr] = []

    def visit(access: ir.TensorLoad | tirx.BufferStore) -> None:
        found.extend(i for i in access.indices if isinstance(i, tirx.Ramp) or "x" in str(i.ty))

    tvm_ffi.structural_walk(lowered.body, ((ir.TensorLoad, tirx.BufferStore), visit))
    return found


dims = st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 31, 49, 64]))
shapes = st.lists(dims, min_size=1, max_size=4).filter(lambda s: np.prod(s) < 200_000)


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[str, list[int], list[int]]:
    """A binary operator and two shapes that broadcast."""
    shape = draw(shapes)
    other = [draw(st.sampled_from([d, d, 1])) for d in shape]
    other = other[draw(st.integers(0, len(shape))) :]
    return draw(st.sampled_from(["Add", "Mul", "Sub", "Div"])), shape, other


@given(st.lists(broadcasts(), min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_broadcast_agrees_with_onnxruntime(
    cases: list[tuple[str, list[int], list[int]]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for operator, shape, other in cases:
        result = graph.op(operator, graph.input(*shape), graph.input(*other, mean=9))
        graph.output(graph.op("Relu", result))
    assert set(rules(check(graph, spec))) == {"elementwise"}


@st.composite
def movements(draw: st.DrawFn) -> tuple[str, list[int], int]:
    """An operator that moves data, a shape, an axis of it."""
    shape = draw(shapes)
    kinds = ["Concat", "Transpose", "Pad", "Slice", "Gather", "Tile"]
    return draw(st.sampled_from(kinds)), shape, draw(st.integers(0, len(shape) - 1))


def move(graph: Graph, kind: str, shape: list[int], axis: int) -> None:
    """Add an operator that moves data to a graph."""
    data = graph.input(*shape)
    rank = len(shape)
    if kind == "Concat":
        other = [d + (i == axis) for i, d in enumerate(shape)]
        result = graph.op("Concat", data, graph.input(*other), data, axis=axis)
    elif kind == "Transpose":
        result = graph.op("Transpose", data, perm=[*range(axis, rank), *range(axis)])
    elif kind == "Pad":
        pads = [i == axis for i in range(rank)] + [2 * (i == axis) for i in range(rank)]
        result = graph.op("Pad", data, graph.constant(np.array(pads, "int64")))
    elif kind == "Slice":
        bounds = ([0], [shape[axis]], [axis], [2])
        result = graph.op("Slice", data, *(graph.constant(np.array(b)) for b in bounds))
    elif kind == "Gather":
        indices = graph.input(5, dtype="int64", high=shape[axis])
        result = graph.op("Gather", data, indices, axis=axis)
    else:
        repeats = graph.constant(np.array([2 - (i != axis) for i in range(rank)]))
        result = graph.op("Tile", data, repeats)
    graph.output(graph.op("Neg", result))


@given(st.lists(movements(), min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_movement_agrees_with_onnxruntime(
    cases: list[tuple[str, list[int], int]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for case in cases:
        move(graph, *case)
    assert set(rules(check(graph, spec))) == {"elementwise"}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_contiguous_images_are_not_gathered(spec: DeviceSpec) -> None:
    # 3136 pixels are whole vectors, 56 are not: fused with the channels, the index of a lane was a
    # sum of quotients and remainders, and every vector gathered (five times as long).
    graph = Graph()
    for shape in [(1, 8, 56, 56), (3, 5, 28, 28), (2, 3, 7, 16), (4, 13, 12, 4), (2, 5, 13, 13)]:
        graph.output(graph.op("Relu", graph.input(*shape)))
    for kernel in check(graph, spec):
        for index in vector_indices(kernel.scheduled.func):
            assert isinstance(index, tirx.Ramp), f"{kernel.name}: {index}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_exponentials_and_roots_are_vectors(spec: DeviceSpec) -> None:
    # LLVM calls the C library for each lane, 5 ns an element.
    graph = Graph()
    data = graph.input(3, 50, 31)
    graph.output(graph.op("Exp", data))
    graph.output(graph.op("Sigmoid", data))
    graph.output(graph.op("Erf", data))
    for power in (0.25, 0.5, 0.75):
        graph.output(graph.op("Pow", graph.op("Abs", data), graph.constant(power)))
    library = {ir.Op.get(name) for name in ("tirx.exp", "tirx.erf", "tirx.pow", "tirx.sigmoid")}
    for kernel in check(graph, spec):
        func = expand_functions(kernel.scheduled.func)
        assert not scalar_lanes(func)
        calls: list[ir.Op] = []
        tvm_ffi.structural_walk(func, (ir.Call, lambda call, calls=calls: calls.append(call.op)))
        assert not library.intersection(calls), kernel.name


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_transposes_work_in_tiles(spec: DeviceSpec) -> None:
    # Line by line of the output every element costs a cache line: 1x26x26x256 to NCHW took four
    # times as long. Sizes leave remainders in both directions.
    graph = Graph()
    for shape, permutation in [
        ((130, 75), [1, 0]),
        ((1, 13, 14, 47), [0, 3, 1, 2]),
        ((1, 33, 13, 18), [0, 2, 3, 1]),
        ((2, 37, 5, 24), [0, 2, 3, 1]),
        ((64, 128), [1, 0]),
    ]:
        moved = graph.op("Transpose", graph.input(*shape), perm=permutation)
        graph.output(graph.op("Relu", moved))
    kernels = check(graph, spec)
    assert set(rules(kernels)) == {"elementwise"}
    for kernel in kernels:
        assert not scalar_lanes(kernel.scheduled.func)
        # An outer loop for the batch at most; then strips, tiles, rows of the tile, lanes.
        sch = s_tir.Schedule(kernel.scheduled.func)
        (name,) = block_names(kernel.scheduled.func) - {"root"}
        *_, row, lane = sch.get_loops(sch.get_sblock(name))
        assert sch.get(lane).kind == tirx.ForKind.VECTORIZED
        assert spec.cache_line // 8 <= int(sch.get(row).extent) <= spec.cache_line // 4


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_images_leave_their_blocks_in_tiles(spec: DeviceSpec) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 9, 7, 16)).astype("float32")
    data = te.placeholder(image.shape, "float32", "data")
    func = te.create_prim_func([data, unpack_image(data, 41)])
    scheduled = schedule(func, spec).func
    result = call(scheduled, image, np.zeros((1, 41, 9, 7), "float32"))
    expected = image.transpose(0, 1, 4, 2, 3).reshape(1, 48, 9, 7)[:, :41]
    assert np.array_equal(result, expected)
    assert not scalar_lanes(scheduled)
    sch = s_tir.Schedule(scheduled)
    *_, row, _ = sch.get_loops(sch.get_sblock("unpacked"))
    assert int(sch.get(row).extent) == 16


TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_type_is_vectorised(spec: DeviceSpec) -> None:
    graph = Graph()
    for dtype, code in TYPES.items():
        operands = [graph.input(3, 210, 514, dtype=dtype) for _ in range(2)]
        graph.output(graph.op("Add", *operands), code)
    flags = graph.input(3, 210, 514, dtype="bool")
    graph.output(graph.op("Not", flags), TensorProto.BOOL)
    graph.output(graph.op("Less", graph.input(3, 210, 514), graph.input(514)), TensorProto.BOOL)
    graph.output(graph.op("Cast", flags, to=TensorProto.FLOAT))
    graph.output(graph.op("Where", flags, graph.input(210, 514), graph.input(1)))
    assert set(rules(check(graph, spec))) == {"elementwise"}


def test_activations() -> None:
    graph = Graph()
    for kind in ("Sigmoid", "Tanh", "Exp", "Erf", "HardSwish", "Elu", "LeakyRelu", "Softplus"):
        graph.output(graph.op(kind, graph.input(1, 7, 33, 31)))
    check(graph)


def test_long_chains_do_not_explode() -> None:
    graph = Graph()
    mean, half = graph.input(1, 7, 33, 31), graph.constant(0.5)
    for _ in range(24):  # in one expression, 2**24 loads
        mean = graph.op("Mul", graph.op("Add", mean, mean), half)
    graph.output(mean)
    assert set(rules(check(graph))) == {"elementwise"}


def test_images() -> None:
    graph = Graph()
    image = graph.input(1, 8, 33, 35)
    twice = graph.constant(np.array([1, 1, 2, 2], "float32"))
    graph.output(
        graph.op(
            "Resize",
            image,
            "",
            twice,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )
    )
    graph.output(graph.op("Resize", image, "", twice, mode="linear"))
    graph.output(graph.op("DepthToSpace", image, blocksize=2))
    border = graph.constant(np.array([0, 0, 1, 1, 0, 0, 2, 2]))
    graph.output(graph.op("Pad", image, border, mode="reflect"))
    grouped = graph.op("Reshape", image, graph.constant(np.array([1, 2, 4, 33, 35])))
    shuffled = graph.op("Transpose", grouped, perm=[0, 2, 1, 3, 4])
    graph.output(graph.op("Reshape", shuffled, graph.constant(np.array([1, 8, 33, 35]))))
    assert set(rules(check(graph))) == {"elementwise"}


def test_scalars_and_empty_tensors() -> None:
    graph = Graph()
    graph.output(graph.op("Mul", graph.input(), graph.input()))
    graph.output(graph.op("Add", graph.input(0, 4), graph.input(4)))
    graph.output(graph.op("Relu", graph.input(1, 1, 1, 1)))
    assert set(rules(check(graph))) == {"elementwise"}
