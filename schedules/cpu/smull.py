"""Products of 8-bit numbers on NEON without dot products (Cortex-A53, A72): pairs in 16 bits.

``smull`` and ``smlal`` multiply eight numbers each and add two products up in 16 bits; ``sadalp``
adds neighbours of them to four accumulators of 32 bits: 16 products by three instructions, where
``fmla`` takes four. Filters have two channels side by side for each lane, and two such groups a
step; the two channels of a pixel are broadcast. Depthwise convolutions have a channel in each lane
and two taps a sum, which ``saddw`` widens.

Two products of -128 by -128 are more than 16 bits hold. Filters that have such pairs stay in the
groups of four of other CPUs and are multiplied one by one.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

__all__ = ["CHANNELS", "TAPS", "added_one_by_one", "broadcast_pairs", "overflows", "window_taps"]

CHANNELS = 2
"""Channels of a filter that are side by side for each lane."""

TAPS = 1
"""Taps of a depthwise filter that are."""

_MULTIPLY = "llvm.aarch64.neon.smull.v8i16"
_ADD_PAIRS = "llvm.aarch64.neon.saddlp.v4i32.v8i16"
_ADD_WORDS = "llvm.aarch64.neon.addp.v4i32"
_LOWEST = -128

_Intrinsic = tuple[tirx.PrimFunc, tirx.PrimFunc]


def overflows(weights: np.ndarray, *, depthwise: bool) -> bool:
    """Return whether two products that are added up in 16 bits may be more than those hold.

    Parameters
    ----------
    weights : np.ndarray
        ``[O, C/groups, KH, KW]`` of int8.
    depthwise : bool
        Whether neighbouring columns are added up, and not channels two apart.
    """
    lowest = weights == _LOWEST
    if depthwise:
        return bool((lowest[..., 1:] & lowest[..., :-1]).any())
    return bool((lowest[:, CHANNELS:] & lowest[:, :-CHANNELS]).any())


def added_one_by_one(accumulators: tirx.Expr, filters: tirx.Expr, pixels: tirx.Expr) -> tirx.Expr:
    """Return four accumulators, with the products of four numbers of 8 bits each added."""
    words = []
    for upper in (False, True):
        products = _multiplied(_half(filters, upper), _half(pixels, upper))
        words.append(_intrinsic("int32x4", _ADD_PAIRS, products))
    return accumulators + _intrinsic("int32x4", _ADD_WORDS, *words)


def broadcast_pairs(block: int) -> _Intrinsic:
    """Return description and implementation of a step of four channels for four accumulators.

    Parameters
    ----------
    block : int
        Output channels between a group of filters and the next.
    """

    def product(pixel: tirx.Buffer, filters: tirx.Buffer, group: int) -> tirx.Expr:
        # An element of a whole vector, which tvm_edge.lowering.vector_elements makes of it.
        pair = tirx.reinterpret("int16", pixel.vload([2 * group], "int8x2"))
        pixels = tirx.reinterpret("int8x16", tirx.Broadcast(pair, 8))
        return _multiplied(filters.vload([group, 0, 0], "int8x8"), _half(pixels, upper=False))

    def added(accumulators: tirx.Buffer, pixel: tirx.Buffer, filters: tirx.Buffer) -> tirx.Expr:
        both = product(pixel, filters, 0) + product(pixel, filters, 1)
        return accumulators.vload([0], "int32x4") + _intrinsic("int32x4", _ADD_PAIRS, both)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4,), "int8", offset_factor=1)
        B = T.match_buffer(b, (2, 4, 2), "int8", strides=[2 * block, 2, 1], offset_factor=1)
        C = T.match_buffer(c, (4,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:4], A[0:4], B[0:2, 0:4, 0:2])
            T.writes(C[0:4])
            for i in T.serial(0, 4):
                for k in T.serial(0, 4):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(
                            B[vk // 2, vi, vk % 2], "int32"
                        )

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4,), "int8", offset_factor=1)
        B = T.match_buffer(b, (2, 4, 2), "int8", strides=[2 * block, 2, 1], offset_factor=1)
        C = T.match_buffer(c, (4,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:4], A[0:4], B[0:2, 0:4, 0:2])
            T.writes(C[0:4])
            C[T.ramp(T.int32(0), 1, 4)] = added(C, A, B)

    return description, implementation


def window_taps(block: int) -> _Intrinsic:
    """Return description and implementation of two taps of a line, for a pixel's 16 channels.

    Parameters
    ----------
    block : int
        Channels from a pixel to the next.
    """

    def added(
        accumulators: tirx.Buffer, pixels: tirx.Buffer, filters: tirx.Buffer, first: int
    ) -> tirx.Expr:
        """Return accumulators of four channels."""
        half, quarter = first // 8 * 8, first % 8
        one, two = (
            _multiplied(
                pixels.vload([tap, half], "int8x8"), filters.vload([tap, half, 0], "int8x8")
            )
            for tap in range(2)
        )
        own = tirx.Shuffle([one + two], list(range(quarter, quarter + 4)))
        return accumulators.vload([first], "int32x4") + tirx.Cast("int32x4", own)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 16), "int8", strides=[block, 1], offset_factor=1)
        B = T.match_buffer(b, (2, 16, 1), "int8", offset_factor=1)
        C = T.match_buffer(c, (16,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2, 0:16], B[0:2, 0:16, 0:1])
            T.writes(C[0:16])
            for i in T.serial(0, 16):
                for k in T.serial(0, 2):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk, vi], "int32") * T.cast(B[vk, vi, 0], "int32")

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 16), "int8", strides=[block, 1], offset_factor=1)
        B = T.match_buffer(b, (2, 16, 1), "int8", offset_factor=1)
        C = T.match_buffer(c, (16,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2, 0:16], B[0:2, 0:16, 0:1])
            T.writes(C[0:16])
            C[T.ramp(T.int32(0), 1, 4)] = added(C, A, B, 0)
            C[T.ramp(T.int32(4), 1, 4)] = added(C, A, B, 4)
            C[T.ramp(T.int32(8), 1, 4)] = added(C, A, B, 8)
            C[T.ramp(T.int32(12), 1, 4)] = added(C, A, B, 12)

    return description, implementation


def _multiplied(one: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
    return _intrinsic("int16x8", _MULTIPLY, one, other)


def _intrinsic(dtype: str, name: str, *operands: tirx.Expr) -> tirx.Expr:
    return tirx.call_llvm_pure_intrin(dtype, name, *operands)


def _half(vector: tirx.Expr, upper: bool) -> tirx.Expr:
    return tirx.Shuffle([vector], list(range(8 * upper, 8 * upper + 8)))
