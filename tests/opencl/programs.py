"""Kernels shared by the tests, each compiled once a process.

`compiled` schedules nothing: grids and work-groups are written out, none above 64 work-items so
that every device takes them. `from_source` makes a module of OpenCL C written by hand, for what
TVM's code generator would not write.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm.runtime import Module, Tensor
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import PrimFunc

THREADS = 16
N = 4 * THREADS
"""Elements of the tensors of most kernels here."""


def compiled(function: PrimFunc, **more: PrimFunc) -> tvm.runtime.Executable:
    """Compile for OpenCL with an LLVM host; the first function is called ``main``."""
    functions = {"main": function, **more}
    module = tvm.IRModule(
        {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    )
    return tvm.compile(module, target=Target("opencl", host="llvm"))


def device_code(executable: tvm.runtime.Executable) -> Module:
    """The OpenCL module inside `executable`."""
    (module,) = (m for m in executable.mod.imports if m.kind == "opencl")
    return module


@functools.cache
def add_one() -> tvm.runtime.Executable:
    """``main(a[N], b[N])``: b = a + 1."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for group in T.thread_binding(N // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                b[group * THREADS + item] = a[group * THREADS + item] + T.float32(1)

    return compiled(main)


@functools.cache
def add_n() -> tvm.runtime.Executable:
    """``main(a[n], b[n])``: b = a + 1 for any n that work-groups of 16 divide."""

    @T.prim_func(s_tir=True)
    def main(a_handle: T.handle, b_handle: T.handle):
        n = T.int64()
        a = T.match_buffer(a_handle, (n,), "float32")
        b = T.match_buffer(b_handle, (n,), "float32")
        for group in T.thread_binding(n // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                b[group * THREADS + item] = a[group * THREADS + item] + T.float32(1)

    return compiled(main)


@functools.cache
def add_one_at_offset() -> tvm.runtime.Executable:
    """``main(a[N], b[N])``: b = a + 1 where both may begin anywhere in their memory."""

    @T.prim_func(s_tir=True)
    def main(a_handle: T.handle, b_handle: T.handle):
        a_offset = T.int64()
        b_offset = T.int64()
        a = T.match_buffer(a_handle, (N,), "float32", elem_offset=a_offset, offset_factor=1)
        b = T.match_buffer(b_handle, (N,), "float32", elem_offset=b_offset, offset_factor=1)
        for group in T.thread_binding(N // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                b[group * THREADS + item] = a[group * THREADS + item] + T.float32(1)

    return compiled(main)


@functools.cache
def fill(dtype: str) -> tvm.runtime.Executable:
    """``main(value, b[N])``: b = value, which travels as a kernel argument of `dtype`."""

    @T.prim_func(s_tir=True)
    def main(value: getattr(T, dtype), b: T.Buffer((N,), dtype)):
        for group in T.thread_binding(N // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                b[group * THREADS + item] = value

    return compiled(main)


@functools.cache
def mixed_scalars() -> tvm.runtime.Executable:
    """``main(i8, f32, i64, i16, b[N])``: scalars of several widths between buffers."""

    @T.prim_func(s_tir=True)
    def main(
        i8: T.int8,
        f32: T.float32,
        a: T.Buffer((N,), "float32"),
        i64: T.int64,
        i16: T.int16,
        b: T.Buffer((N,), "float32"),
    ):
        for group in T.thread_binding(N // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                b[group * THREADS + item] = (
                    a[group * THREADS + item]
                    + T.cast(i8, "float32")
                    + f32
                    + T.cast(i64 // T.int64(1 << 33), "float32")
                    + T.cast(i16, "float32")
                )

    return compiled(main)


def _reverse_groups(scope: str) -> PrimFunc:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "int32"), b: T.Buffer((N,), "int32")):
        for group in T.thread_binding(N // THREADS, thread="blockIdx.x"):
            with T.sblock("group"):
                T.reads(a[0:N])
                T.writes(b[0:N])
                tile = T.sblock_alloc_buffer((THREADS,), "int32", scope=scope)
                for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                    with T.sblock("in"):
                        T.reads(a[group * THREADS + item])
                        T.writes(tile[item])
                        tile[item] = a[group * THREADS + item]
                for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                    with T.sblock("out"):
                        T.reads(tile[THREADS - 1 - item])
                        T.writes(b[group * THREADS + item])
                        b[group * THREADS + item] = tile[THREADS - 1 - item]

    return main


@functools.cache
def reverse_groups() -> tvm.runtime.Executable:
    """``main(a[N], b[N])``: each run of 16 backwards, through local memory and a barrier."""
    return compiled(_reverse_groups("shared"))


@functools.cache
def positions(rank: int) -> tvm.runtime.Executable:
    """``main(b)``: the flat index of each element, launched in `rank` dimensions.

    b is [24], [6, 8] or [4, 6, 8]; every dimension has several groups and several items.
    """

    @T.prim_func(s_tir=True)
    def one(b: T.Buffer((24,), "int32")):
        for gx in T.thread_binding(3, thread="blockIdx.x"):
            for x in T.thread_binding(8, thread="threadIdx.x"):
                b[gx * 8 + x] = gx * 8 + x

    @T.prim_func(s_tir=True)
    def two(b: T.Buffer((6, 8), "int32")):
        for gy in T.thread_binding(2, thread="blockIdx.y"):
            for gx in T.thread_binding(2, thread="blockIdx.x"):
                for y in T.thread_binding(3, thread="threadIdx.y"):
                    for x in T.thread_binding(4, thread="threadIdx.x"):
                        b[gy * 3 + y, gx * 4 + x] = (gy * 3 + y) * 8 + gx * 4 + x

    @T.prim_func(s_tir=True)
    def three(b: T.Buffer((4, 6, 8), "int32")):
        for gz in T.thread_binding(2, thread="blockIdx.z"):
            for gy in T.thread_binding(2, thread="blockIdx.y"):
                for gx in T.thread_binding(2, thread="blockIdx.x"):
                    for z in T.thread_binding(2, thread="threadIdx.z"):
                        for y in T.thread_binding(3, thread="threadIdx.y"):
                            for x in T.thread_binding(4, thread="threadIdx.x"):
                                b[gz * 2 + z, gy * 3 + y, gx * 4 + x] = (
                                    ((gz * 2 + z) * 6 + gy * 3 + y) * 8 + gx * 4 + x
                                )

    return compiled((one, two, three)[rank - 1])


@functools.cache
def double_0d() -> tvm.runtime.Executable:
    """``main(a[], b[])``: b = 2 a."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((), "float32"), b: T.Buffer((), "float32")):
        for _item in T.thread_binding(1, thread="threadIdx.x"):
            b[()] = a[()] * T.float32(2)

    return compiled(main)


@functools.cache
def two_kernels() -> tvm.runtime.Executable:
    """``main``: b = a + 1; ``twice``: b = 2 a. One module, two kernels."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for item in T.thread_binding(N, thread="threadIdx.x"):
            b[item] = a[item] + T.float32(1)

    @T.prim_func(s_tir=True)
    def twice(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for item in T.thread_binding(N, thread="threadIdx.x"):
            b[item] = a[item] * T.float32(2)

    return compiled(main, twice=twice)


@functools.cache
def spin(n: int = N) -> tvm.runtime.Executable:
    """``main(rounds, a[n])``: `rounds` dependent steps for every element; takes time."""

    @T.prim_func(s_tir=True)
    def main(rounds: T.int32, a: T.Buffer((n,), "int32")):
        for group in T.thread_binding(n // THREADS, thread="blockIdx.x"):
            for item in T.thread_binding(THREADS, thread="threadIdx.x"):
                for _round in T.serial(rounds):
                    a[group * THREADS + item] = a[group * THREADS + item] * 1103515245 + 12345

    return compiled(main)


@functools.cache
def dynamic_shared() -> PrimFunc:
    """`reverse_groups` with local memory that is sized at launch; not compiled."""
    return _reverse_groups("shared.dyn")


def module_bytes(code: str, kernels: dict[str, tuple[Sequence[str], Sequence[str]]]) -> bytes:
    """TVM's serialised form of an OpenCL module.

    Parameters
    ----------
    code
        OpenCL C, each kernel after a line ``// Function: <name>``.
    kernels
        Name → (argument types: dtypes or ``handle``, launch tags).
    """
    codes = {"int": 0, "uint": 1, "float": 2}

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def dtype(name: str) -> bytes:
        if name == "handle":
            return struct.pack("<BBH", 3, 64, 1)
        kind = name.rstrip("0123456789")
        return struct.pack("<BBH", codes[kind], int(name[len(kind) :]), 1)

    out = text("cl") + struct.pack("<Q", len(kernels))
    for name, (types, tags) in kernels.items():
        out += text(name) + text(name)
        out += struct.pack("<Q", len(types)) + b"".join(map(dtype, types))
        out += struct.pack("<Q", len(tags)) + b"".join(map(text, tags))
        out += struct.pack("<Q", 0)
    return out + text(code)


def from_source(code: str, kernels: dict[str, tuple[Sequence[str], Sequence[str]]]) -> Module:
    """A module of OpenCL C; `kernels` as in `module_bytes`. Call ``module[name](...)``."""
    return load_bytes(module_bytes(code, kernels))


def load_bytes(data: bytes) -> Module:
    """The module that `data` is the serialised form of."""
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(data)


ADD_ONE_SOURCE = """// Function: add_one
__kernel void add_one(__global const float* a, __global float* b) {
  b[get_global_id(0)] = a[get_global_id(0)] + 1.0f;
}
"""


def add_one_from_source(name: str = "add_one") -> Callable[..., None]:
    """``f(a, b, groups, items)`` of a module of its own, with a kernel of that name."""
    code = ADD_ONE_SOURCE.replace("add_one", name)
    module = from_source(code, {name: (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))})
    kernel = module[name]

    def call(a: Tensor, b: Tensor, groups: int, items: int) -> None:
        kernel(pointer(a), pointer(b), groups, items)

    return call


def two_adders() -> dict[str, bytes]:
    """Modules of one kernel each, ``add_0`` and ``add_1``: two programs no other test builds."""
    signature = (("handle", "handle"), ("blockIdx.x", "threadIdx.x"))
    return {
        name: module_bytes(ADD_ONE_SOURCE.replace("add_one", name), {name: signature})
        for name in ("add_0", "add_1")
    }


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """The handle a kernel takes for `tensor`."""
    return ctypes.c_void_p(tensor.data_ptr())
