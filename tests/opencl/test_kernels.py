"""Launches: arguments of every type, local memory, every rank and size of a grid."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

import tvm_edge.opencl
from tests.opencl import programs
from tests.opencl.support import Shim, Worker, empty, ramp, upload

EXTREMES = {
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1, 2**40 + 3),
    "uint8": (0, 255),
    "uint16": (65535,),
    "uint32": (2**32 - 1, 2**31),
    # FFI integers are signed: larger ones do not arrive in TVM at all.
    "uint64": (2**63 - 1, 2**33 + 1),
    "float16": (-1.5, 65504.0, 0.333251953125, 6.103515625e-05),
    "float32": (-1.5, 3.4e38, 1e-30),
    "float64": (0.1, 1e300, -1e-300),
}


def needs(dtype: str) -> None:
    """Skip where the device lacks `dtype`."""
    if dtype in ("float16", "float64") and not tvm_edge.opencl.device_info()[dtype]:
        pytest.skip(f"the device has no {dtype}")


@pytest.mark.parametrize("dtype", EXTREMES)
def test_a_scalar_arrives_as_it_was(device: Any, dtype: str) -> None:
    needs(dtype)
    for value in EXTREMES[dtype]:
        out = empty((programs.N,), dtype)
        programs.fill(dtype)(value, out)
        np.testing.assert_array_equal(out.numpy(), np.full(programs.N, value, dtype))


def test_division_is_rounded_correctly(device: Any) -> None:
    """As NumPy divides, on devices that can: OpenCL alone would allow an error of 2.5 ulp."""
    code = """
__kernel void divide(__global const float* a, __global const float* b, __global float* quotient) {
  int i = get_global_id(0);
  quotient[i] = a[i] / b[i];
}
"""
    signature = (("handle", "handle", "handle"), ("blockIdx.x", "threadIdx.x"))
    kernel = programs.from_source(f"// Function: divide\n{code}", {"divide": signature})
    random = np.random.default_rng(0)
    a, b = (random.random(1 << 16, "float32") + np.float32(0.01) for _ in range(2))
    out = empty(a.shape, "float32")
    tensors = [upload(a), upload(b), out]
    kernel["divide"](*map(programs.pointer, tensors), a.size // 64, 64)
    np.testing.assert_array_equal(out.numpy(), a / b)


def test_numbers_are_converted_or_refused(device: Any) -> None:
    """Called without TVM's host code, which would have cast them."""
    code = """
__kernel void fill_like(__global float* y, float value, int count) {
  for (int i = 0; i < count; ++i) y[i] = value;
}
"""
    signature = (("handle", "float32", "int32"), ("threadIdx.x",))
    kernel = programs.from_source(f"// Function: fill_like\n{code}", {"fill_like": signature})
    out = upload(ramp(programs.N))
    kernel["fill_like"](programs.pointer(out), 7, 2, 1)
    assert out.numpy()[:3].tolist() == [7, 7, 2]
    for wrong in ((1.5, 2.5), ("text", 2), (1.5, programs.pointer(out))):
        with pytest.raises(TypeError, match="fill_like"):
            kernel["fill_like"](programs.pointer(out), *wrong, 1)


def add_one() -> Any:
    """``add_one(a, b, groups, items)``, whose arguments nobody checks before the runtime."""
    signature = (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))
    return programs.from_source(programs.ADD_ONE_SOURCE, {"add_one": signature})["add_one"]


def test_what_is_no_pointer_and_no_size_is_refused(device: Any) -> None:
    """The bits of a number would be an address, those of an object a number of work-groups."""
    out, run = upload(ramp(programs.N)), add_one()
    pointer = programs.pointer(out)
    for arguments in (
        (pointer, out.data_ptr(), 4, 16),
        (pointer, 0.5, 4, 16),
        (pointer, out, 4, 16),
        (pointer, pointer, pointer, 16),
        (pointer, pointer, 4.0, 16),
        (pointer, pointer, 4, None),
    ):
        with pytest.raises(TypeError, match="add_one"):
            run(*arguments)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N))


def test_more_work_items_than_a_number_can_say(device: Any) -> None:
    """The product of both would be a small number, and part of the work silently left out."""
    out = upload(ramp(programs.N))
    pointer = programs.pointer(out)
    with pytest.raises(ValueError, match="more than a number can say"):
        add_one()(pointer, pointer, (1 << 60) + 4, 16)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N))


def test_scalars_of_several_widths_between_buffers(device: Any) -> None:
    out = empty((programs.N,))
    programs.mixed_scalars()(-5, 0.25, upload(ramp(programs.N)), 3 << 33, -300, out)
    np.testing.assert_array_equal(out.numpy(), ramp(programs.N) - 5 + 0.25 + 3 - 300)


def test_local_memory_and_a_barrier(device: Any) -> None:
    values = ramp(programs.N, "int32")
    out = empty((programs.N,), "int32")
    programs.reverse_groups()(upload(values), out)
    expected = values.reshape(-1, programs.THREADS)[:, ::-1].ravel()
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_rank_of_a_grid(device: Any, rank: int) -> None:
    shape = ((24,), (6, 8), (4, 6, 8))[rank - 1]
    out = upload(np.full(shape, -1, "int32"))
    programs.positions(rank)(out)
    np.testing.assert_array_equal(out.numpy().ravel(), ramp(out.numpy().size, "int32"))


def test_tensors_without_dimensions(device: Any) -> None:
    out = empty(())
    programs.double_0d()(upload(np.array(21, "float32")), out)
    assert out.numpy() == 42


def test_a_grid_without_groups_does_nothing(device: Any) -> None:
    programs.add_n()(empty((0,)), empty((0,)))
    a, b = upload(ramp(32)), empty((32,))
    programs.add_n()(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(32) + 1)


def test_a_grid_of_a_million_groups(device: Any) -> None:
    n = programs.THREADS << 20
    a, b = upload(ramp(n)), empty((n,))
    programs.add_n()(a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(n) + 1)


def test_sixty_arguments(device: Any) -> None:
    """The least a device may take is 1024 bytes of arguments: 128 pointers."""
    names = [f"a{i}" for i in range(59)]
    arguments = ", ".join(f"__global const float* {name}" for name in names)
    total = " + ".join(f"{i + 1} * {name}[i]" for i, name in enumerate(names))
    code = (
        "// Function: many\n"
        f"__kernel void many({arguments}, __global float* out) {{\n"
        f"  int i = get_global_id(0);\n  out[i] = {total};\n}}\n"
    )
    tags = ("blockIdx.x", "threadIdx.x")
    module = programs.from_source(code, {"many": (("handle",) * 60, tags)})
    inputs = [upload(np.full(programs.N, i, "float32")) for i in range(59)]
    out = empty((programs.N,))
    module["many"](*map(programs.pointer, [*inputs, out]), 4, programs.THREADS)
    # Small integers: exact in any order of summation.
    np.testing.assert_array_equal(out.numpy(), sum((i + 1) * i for i in range(59)))


def test_the_same_tensor_twice(device: Any) -> None:
    module = programs.from_source(
        "// Function: sum\n__kernel void sum(__global float* a, __global const float* b) {\n"
        "  int i = get_global_id(0);\n  a[i] = a[i] + b[i];\n}\n",
        {"sum": (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))},
    )
    a = upload(ramp(programs.N))
    module["sum"](programs.pointer(a), programs.pointer(a), 4, programs.THREADS)
    np.testing.assert_array_equal(a.numpy(), 2 * ramp(programs.N))


def test_launches_run_in_order(device: Any) -> None:
    a, b = upload(np.zeros(programs.N, "float32")), empty((programs.N,))
    run = programs.add_one()["main"]
    for _ in range(500):
        run(a, b)
        run(b, a)
    np.testing.assert_array_equal(a.numpy(), np.full(programs.N, 1000, "float32"))


# ---- TVM's own tests of its OpenCL code, asked for results rather than for text ----


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float32", "float64"])
def test_maximum_of_every_type(device: Any, dtype: str) -> None:
    needs(dtype)

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4,), dtype), c: T.Buffer((4,), dtype)):
        for i in T.thread_binding(4, thread="threadIdx.x"):
            c[i] = T.max(a[i] + T.cast(1, dtype), T.cast(3, dtype))

    values = np.array([0, 1, 2, 100], dtype)
    out = empty((4,), dtype)
    programs.compiled(main)(upload(values), out)
    np.testing.assert_array_equal(out.numpy(), np.maximum(values + 1, 3))


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_select_and_if_then_else(device: Any, dtype: str) -> None:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4,), dtype), b: T.Buffer((4,), dtype), c: T.Buffer((4,), dtype)):
        for i in T.thread_binding(4, thread="threadIdx.x"):
            b[i] = T.max(T.cast(2, dtype), T.Select(a[i] > 1, T.cast(1, dtype), T.cast(3, dtype)))
            c[i] = T.if_then_else(a[i] > 1, T.cast(7, dtype), T.cast(9, dtype))

    b, c = empty((4,), dtype), empty((4,), dtype)
    programs.compiled(main)(upload(np.array([0, 1, 2, 3], dtype)), b, c)
    assert b.numpy().tolist() == [3, 3, 2, 2]
    assert c.numpy().tolist() == [9, 9, 7, 7]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinities_and_nan(device: Any, dtype: str) -> None:
    needs(dtype)
    inf, nan = float("inf"), float("nan")

    @T.prim_func(s_tir=True)
    def main(c: T.Buffer((3,), dtype)):
        for _i in T.thread_binding(1, thread="threadIdx.x"):
            c[0] = T.cast(T.float32(inf), dtype)
            c[1] = T.cast(T.float32(-inf), dtype)
            c[2] = T.cast(T.float32(nan), dtype)

    out = empty((3,), dtype)
    programs.compiled(main)(out)
    np.testing.assert_array_equal(out.numpy(), np.array([inf, -inf, nan], dtype))


def test_vectors_of_conditions(device: Any) -> None:
    @T.prim_func(s_tir=True)
    def main(c: T.Buffer((32,), "float32")):
        for i in T.thread_binding(8, thread="threadIdx.x"):
            for j in T.vectorized(4):
                c[i * 4 + j] = T.Select(
                    (i * 4 + j) // 4 == 3 and (i * 4 + j) % 3 == 1, T.float32(1), T.float32(0)
                )

    out = empty((32,))
    programs.compiled(main)(out)
    i = np.arange(32)
    np.testing.assert_array_equal(out.numpy(), ((i // 4 == 3) & (i % 3 == 1)).astype("float32"))


def test_erf(device: Any) -> None:
    """OpenCL C has erf for every width, and no erff."""
    import math

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((16,), "float32"), c: T.Buffer((16,), "float32")):
        for i in T.thread_binding(16, thread="threadIdx.x"):
            c[i] = T.erf(a[i])

    values = np.linspace(-3, 3, 16).astype("float32")
    out = empty((16,))
    programs.compiled(main)(upload(values), out)
    # OpenCL 1.2, section 7.4: erf within 16 ulp.
    expected = np.array([math.erf(v) for v in values])
    np.testing.assert_allclose(out.numpy(), expected, rtol=16 * 2**-23, atol=0)


def test_ceil_of_log2(device: Any) -> None:
    needs("float64")

    @T.prim_func(s_tir=True)
    def main(c: T.Buffer((32,), "int32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            c[i] = T.cast(T.ceil(T.log2(T.cast(i + 1, "float64"))), "int32")

    out = empty((32,), "int32")
    programs.compiled(main)(out)
    np.testing.assert_array_equal(out.numpy(), np.ceil(np.log2(np.arange(32) + 1.0)))


def test_tvm_names_the_device(device: Any) -> None:
    assert tvm.runtime.enabled("opencl")


def arguments_set() -> list[int]:
    """Arguments set for ten equal launches, for other tensors, for tensors of a new allocation."""
    run = programs.add_one()["main"]
    shim = Shim.here()
    counts = []

    def launch(times: int, a: Any, b: Any) -> None:
        shim.clear()
        for _ in range(times):
            run(a, b)
        counts.append(shim["arguments"])
        np.testing.assert_array_equal(b.numpy(), a.numpy() + 1)

    a, b = upload(ramp(programs.N)), empty((programs.N,))
    launch(10, a, b)
    launch(1, upload(np.full(programs.N, 5, "float32")), b)
    for _ in range(3):
        # What the driver makes next may have the address of what it destroyed.
        del a, b
        gc.collect()
        tvm_edge.opencl.release_memory()
        a, b = upload(ramp(programs.N)), empty((programs.N,))
        launch(1, a, b)
    return counts


def test_equal_arguments_are_set_once(shimmed: Worker) -> None:
    assert shimmed(arguments_set) == [2, 1, 2, 2, 2]
