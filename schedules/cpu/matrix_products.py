"""Products of small matrices of 8-bit numbers: two pixels by two filters, of eight channels each.

Arm's ``smmla`` adds 32 products to the four sums of a vector, twice those of ``sdot``. So two
neighbouring pixels of a tile share vectors of accumulators: of four filters one has both pixels'
sums with the first two, one with the last two. That is no pixel's vector. Sums begin with zeros,
which are the same in any order, and are put in order once, on their way to the epilogue.

Filters have eight channels side by side, and two such groups a step, which are a block of the
image: ``[O/16, C/16, KH, KW, 2, 16, 8]``.
"""

from __future__ import annotations

import functools

from tvm import tirx
from tvm.s_tir import Schedule, TensorIntrin
from tvm.s_tir.schedule import SBlockRV
from tvm.script import tirx as T

__all__ = ["CHANNELS", "PIXELS", "by_matrices", "copied"]

PIXELS = 2
"""Pixels of a line that an instruction multiplies."""

CHANNELS = 8
"""Channels of a filter that are side by side."""

_BLOCK = 16
_LANES = 4
_MULTIPLY = "llvm.aarch64.neon.smmla.v4i32.v16i8"


def copied(sch: Schedule, block: SBlockRV, epilogue: SBlockRV) -> SBlockRV:
    """Return a copy of the accumulators of a reduction, which its epilogue reads instead."""
    accumulators = sch.get(block).writes[0].source
    reads = [region.source for region in sch.get(epilogue).reads]
    return sch.cache_read(epilogue, reads.index(accumulators), "local")


def by_matrices(
    sch: Schedule, init: SBlockRV, block: SBlockRV, copy: SBlockRV, stride: int
) -> None:
    """Replace a reduction's innermost loops, over pixels, lanes and products, by instructions.

    Parameters
    ----------
    init, block : SBlockRV
        Of a reduction that is decomposed. Its tiles have whole pairs of pixels.
    copy : SBlockRV
        Of :func:`copied`.
    stride : int
        Pixels of the image from one of a pair to the other.
    """
    sch.vectorize(sch.get_loops(init)[-1])
    column, blocks, lane, k = sch.get_loops(block)[-4:]
    pairs, pixel = sch.split(column, factors=[None, PIXELS])
    vectors, lane = sch.split(lane, factors=[None, _LANES])
    # Filters outermost: beside the accumulators is one of them, and all pixels.
    sch.reorder(blocks, vectors, pairs, pixel, lane, k)
    for loop in (blocks, vectors, pairs):
        sch.unroll(loop)
    sch.tensorize(pixel, _product(stride))
    column, lane = sch.get_loops(copy)[-2:]
    pairs, pixel = sch.split(column, factors=[None, PIXELS])
    vectors, lane = sch.split(lane, factors=[None, _LANES])
    sch.reorder(pairs, vectors, pixel, lane)
    for loop in (pairs, vectors):
        sch.unroll(loop)
    sch.tensorize(pixel, _in_order())


@functools.cache
def _product(stride: int) -> str:
    """Name of the intrinsic for two pixels by four filters of 16 channels."""
    name, reach = f"tvm_edge.smmla_{stride}", stride + 1
    halves = [list(range(8 * half, 8 * half + 8)) for half in range(2)]

    def added(sums: tirx.Expr, pixels: tirx.Buffer, filters: tirx.Buffer, first: int) -> tirx.Expr:
        """Return sums of two pixels with two filters, with the products of 16 channels added."""
        both = [pixels.vload([at, 0], "int8x16") for at in (0, stride)]
        for group, half in enumerate(halves):
            own = tirx.Shuffle(both, [*half, *(16 + channel for channel in half)])
            taken = filters.vload([group, first, 0], "int8x16")
            sums = tirx.call_llvm_pure_intrin("int32x4", _MULTIPLY, sums, own, taken)
        return sums

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (reach, 16), "int8", strides=[_BLOCK, 1], offset_factor=1)
        B = T.match_buffer(b, (2, 4, 8), "int8", strides=[8 * _BLOCK, 8, 1], offset_factor=1)
        C = T.match_buffer(c, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:2, 0:4], A[0:reach, 0:16], B[0:2, 0:4, 0:8])
            T.writes(C[0:2, 0:4])
            for x in T.serial(0, 2):
                for i in T.serial(0, 4):
                    for k in T.serial(0, 16):
                        with T.sblock("update"):
                            vx, vi, vk = T.axis.remap("SSR", [x, i, k])
                            C[vx, vi] = C[vx, vi] + T.cast(A[vx * stride, vk], "int32") * T.cast(
                                B[vk // 8, vi, vk % 8], "int32"
                            )

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (reach, 16), "int8", strides=[_BLOCK, 1], offset_factor=1)
        B = T.match_buffer(b, (2, 4, 8), "int8", strides=[8 * _BLOCK, 8, 1], offset_factor=1)
        C = T.match_buffer(c, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:2, 0:4], A[0:reach, 0:16], B[0:2, 0:4, 0:8])
            T.writes(C[0:2, 0:4])
            C[0, T.ramp(T.int32(0), 1, 4)] = added(C.vload([0, 0], "int32x4"), A, B, 0)
            C[1, T.ramp(T.int32(0), 1, 4)] = added(C.vload([1, 0], "int32x4"), A, B, 2)

    TensorIntrin.register(name, description, implementation, override=True)
    return name


@functools.cache
def _in_order() -> str:
    """Name of the intrinsic that puts the sums of two pixels with four filters in order."""
    name = "tvm_edge.smmla_in_order"

    def pixel(sums: tirx.Buffer, at: int) -> tirx.Expr:
        both = [sums.vload([half, 0], "int32x4") for half in range(2)]
        return tirx.Shuffle(both, [2 * at, 2 * at + 1, 4 + 2 * at, 5 + 2 * at])

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        B = T.match_buffer(b, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(A[0:2, 0:4])
            T.writes(B[0:2, 0:4])
            for x in T.serial(0, 2):
                for i in T.serial(0, 4):
                    with T.sblock("copy"):
                        vx, vi = T.axis.remap("SS", [x, i])
                        B[vx, vi] = A[vx, vi]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        B = T.match_buffer(b, (2, 4), "int32", strides=[_BLOCK, 1], offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(A[0:2, 0:4])
            T.writes(B[0:2, 0:4])
            B[0, T.ramp(T.int32(0), 1, 4)] = pixel(A, 0)
            B[1, T.ramp(T.int32(0), 1, 4)] = pixel(A, 1)

    TensorIntrin.register(name, description, implementation, override=True)
    return name
