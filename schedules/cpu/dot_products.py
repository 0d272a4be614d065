"""Instructions that multiply groups of numbers and add their products to each lane of a vector.

Groups are four of 8 bits with int32 lanes, or two of bfloat16 with float32 lanes. x86's
``vpdpbusd`` (AVX-512 VNNI, AVX-VNNI) takes unsigned by signed numbers, Arm's ``sdot`` signed by
signed ones; ``vdpbf16ps`` and Arm's ``bfdot`` take bfloat16. NEON without ``sdot`` has several
instructions for the same (:mod:`tvm_edge.schedules.cpu.smull`). TVM's tensor intrinsics have the
accumulators in memory of another scope, and there are none for windows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import matrix_products, smull
from tvm_edge.schedules.int8 import BLOCK, image_block

__all__ = ["DOT_PRODUCTS", "PAIR_PRODUCTS", "DotProduct"]


@dataclass(frozen=True)
class DotProduct:
    """One instruction.

    Attributes
    ----------
    intrinsic : str
        LLVM's name; of bfloat16 that of a function of :mod:`tvm_edge.lowering.bfloat16`, of
        vectors of float32, and of pairs of bfloat16 as int32. Empty: it is several instructions.
    lanes : int
        Accumulators in a vector.
    image : {"uint8", "int8", "bfloat16"}
        Type of what is multiplied by the filters: signed ones of 8-bit numbers.
    multiplies_matrices : bool
        Whether the CPU has products of small matrices as well, see
        :mod:`tvm_edge.schedules.cpu.matrix_products`.
    """

    intrinsic: str
    lanes: int
    image: str
    multiplies_matrices: bool = False

    @property
    def filters(self) -> str:
        """Type of the filters."""
        return self.image if self.image == "bfloat16" else "int8"

    @property
    def accumulators(self) -> str:
        """Type of the accumulators."""
        return "float32" if self.image == "bfloat16" else "int32"

    @property
    def group(self) -> int:
        """Numbers that are multiplied and added to a lane: those in 32 bits."""
        return 2 if self.image == "bfloat16" else 4

    def filter_group(self, workload: ConvWorkload, weights: np.ndarray | None = None) -> int:
        """Return how many numbers of a filter are side by side in memory for each lane.

        Parameters
        ----------
        workload : ConvWorkload
            Of 8-bit numbers. Side by side are channels, or columns of a depthwise filter.
        weights : np.ndarray, optional
            ``[O, C/groups, KH, KW]``; without them they are taken for what quantisers write.
        """
        depthwise = workload.depthwise
        if self.multiplies_matrices and _has_pairs(workload):
            return matrix_products.CHANNELS
        if self.intrinsic or (
            weights is not None and smull.overflows(weights, depthwise=depthwise)
        ):
            return self.group
        return smull.TAPS if depthwise else smull.CHANNELS

    def broadcast(self, filter_group: int = 0) -> str:
        """Name of the tensor intrinsic: a group of numbers with one of filters of each lane.

        Parameters
        ----------
        filter_group : int
            See :meth:`filter_group`; 0: a whole group.
        """
        return _register(self, filter_group or self.group, window=False)

    def added(self, accumulators: tirx.Expr, pixels: tirx.Expr, filters: tirx.Expr) -> tirx.Expr:
        """Return accumulators with the products of two vectors added.

        NEON takes an element of the last operand, which pixels are where they are broadcast.
        """
        operands = [filters, pixels] if self.lanes == _NEON else [pixels, filters]
        if self.image == "bfloat16":  # whose vectors LLVM alone has: they are passed as bits
            words = (tirx.reinterpret(f"int32x{self.lanes}", each) for each in operands)
            dtype = f"float32x{self.lanes}"
            return tirx.call_pure_extern(dtype, self.intrinsic, accumulators, *words)
        if not self.intrinsic:
            return smull.added_one_by_one(accumulators, *operands)
        dtype = f"int32x{self.lanes}"
        return tirx.call_llvm_pure_intrin(dtype, self.intrinsic, accumulators, *operands)

    @property
    def window_lanes(self) -> int:
        """Lanes of :meth:`window`: NEON's are four vectors, which are transposed together."""
        return _PIXEL if self.lanes == _NEON else self.lanes

    def window(self, filter_group: int = 0) -> str:
        """Name of the intrinsic whose lanes have four pixels of their own, side by side in a line.

        A pixel is 16 lanes, whatever the instruction has.

        Parameters
        ----------
        filter_group : int
            See :meth:`filter_group`; 0: a whole group.
        """
        return _register(self, filter_group or self.group, window=True)

    def pack(self) -> str:
        """Name of the intrinsic that puts two rows of 16 bits side by side, for all lanes."""
        return _register_pack(self)


DOT_PRODUCTS = {
    "vnni512": DotProduct("llvm.x86.avx512.vpdpbusd.512", 16, "uint8"),
    "vnni256": DotProduct("llvm.x86.avx512.vpdpbusd.256", 8, "uint8"),
    "smmla": DotProduct("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, "int8", multiplies_matrices=True),
    "sdot": DotProduct("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, "int8"),
    "smull": DotProduct("", 4, "int8"),
}
"""By :attr:`tvm_edge.hardware.DeviceSpec.dot_product`."""

PAIR_PRODUCTS = {
    "vdpbf16ps": DotProduct("tvm_edge_vdpbf16ps", 16, "bfloat16"),
    "bfdot": DotProduct("tvm_edge_bfdot", 4, "bfloat16"),
}
"""By :attr:`tvm_edge.hardware.DeviceSpec.pair_product`."""

_PIXEL = 16
_NEON = 4
"""Lanes of 32 bits in its vectors."""


def _has_pairs(workload: ConvWorkload) -> bool:
    """Return whether tiles of a convolution can have whole pairs of pixels of a line."""
    blocks = not workload.depthwise and image_block(workload) == BLOCK
    return blocks and workload.output[1] % matrix_products.PIXELS == 0


@functools.cache
def _register(dot: DotProduct, filter_group: int, *, window: bool) -> str:
    kind = "window" if window else "broadcast"
    name = f"tvm_edge.{kind}_{dot.intrinsic or 'smull'}_{filter_group}"
    if filter_group < dot.group:
        made = smull.window_taps(_PIXEL) if window else smull.broadcast_pairs(_PIXEL)
    elif window:
        made = (_window if dot.window_lanes == dot.lanes else _windows)(dot)
    else:
        made = _broadcast(dot)
    TensorIntrin.register(name, *made, override=True)
    return name


def _broadcast(dot: DotProduct) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Description and implementation of the intrinsic that broadcasts a group of numbers."""
    lanes, image, group = dot.lanes, dot.image, dot.group
    filters, accumulators = dot.filters, dot.accumulators
    one, pixels = f"{image}x{group}", f"{image}x{group * lanes}"
    accumulator_dtype, filter_dtype = f"{accumulators}x{lanes}", f"{filters}x{group * lanes}"

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), image, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), filters, offset_factor=1)
        C = T.match_buffer(c, (lanes,), accumulators, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], accumulators) * T.cast(
                            B[vi, vk], accumulators
                        )

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), image, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), filters, offset_factor=1)
        C = T.match_buffer(c, (lanes,), accumulators, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = dot.added(
                C.vload([0], accumulator_dtype),
                T.reinterpret(
                    T.broadcast(T.reinterpret(A.vload([0], one), dtype="int32"), lanes),
                    dtype=pixels,
                ),
                B.vload([0, 0], filter_dtype),
            )

    return description, implementation


@functools.cache
def _register_pack(dot: DotProduct) -> str:
    name = f"tvm_edge.pack_{dot.intrinsic}"
    TensorIntrin.register(name, *_pack(dot.lanes, dot.image), override=True)
    return name


def _pack(lanes: int, dtype: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Description and implementation of the intrinsic that packs pairs."""
    row, bits, pairs = f"{dtype}x{lanes}", f"uint16x{lanes}", f"{dtype}x{2 * lanes}"
    places = [row * lanes + lane for lane in range(lanes) for row in range(2)]

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (2, lanes), dtype, strides=[T.int32(), 1], offset_factor=1)
        B = T.match_buffer(b, (lanes, 2), dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:2, 0:lanes])
            T.writes(B[0:lanes, 0:2])
            for i in T.serial(0, lanes):
                for k in T.serial(0, 2):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SS", [i, k])
                        B[vi, vk] = A[vk, vi]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (2, lanes), dtype, strides=[T.int32(), 1], offset_factor=1)
        B = T.match_buffer(b, (lanes, 2), dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:2, 0:lanes])
            T.writes(B[0:lanes, 0:2])
            B[0, T.ramp(T.int32(0), 1, 2 * lanes)] = T.reinterpret(
                tirx.Shuffle(
                    [
                        T.reinterpret(A.vload([0, 0], row), dtype=bits),
                        T.reinterpret(A.vload([1, 0], row), dtype=bits),
                    ],
                    places,
                ),
                dtype=pairs,
            )

    return description, implementation


def _of_window(dot: DotProduct) -> tirx.PrimFunc:
    """Description of the intrinsics of windows."""
    lanes, image = dot.window_lanes, dot.image

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4, lanes), image, strides=[_PIXEL, 1], offset_factor=1)
        B = T.match_buffer(b, (lanes, 4), "int8", offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:4, 0:lanes], B[0:lanes, 0:4])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, 4):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk, vi], "int32") * T.cast(B[vi, vk], "int32")

    return description


def _window(dot: DotProduct) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    lanes, image = dot.lanes, dot.image
    accumulator_dtype, bytes_ = f"int32x{lanes}", 4 * lanes
    filters = f"int8x{bytes_}"
    transposed = [column * lanes + lane for lane in range(lanes) for column in range(4)]

    def side_by_side(pixels: tirx.Buffer) -> tirx.Expr:
        """Vector with the four pixels of each lane side by side."""
        if lanes == _PIXEL:  # they are one vector
            return tirx.Shuffle([pixels.vload([0, 0], f"{image}x{bytes_}")], transposed)
        rows = [pixels.vload([column, 0], f"{image}x{lanes}") for column in range(4)]
        return tirx.Shuffle(rows, transposed)

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4, lanes), image, strides=[_PIXEL, 1], offset_factor=1)
        B = T.match_buffer(b, (lanes, 4), "int8", offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:4, 0:lanes], B[0:lanes, 0:4])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = dot.added(
                C.vload([0], accumulator_dtype), side_by_side(A), B.vload([0, 0], filters)
            )

    return _of_window(dot), implementation


def _windows(dot: DotProduct) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Description and implementation for four vectors of the lanes of a pixel."""
    image, lanes = dot.image, _PIXEL

    def added(C: tirx.Buffer, A: tirx.Buffer, B: tirx.Buffer, first: int) -> tirx.Expr:
        """Return accumulators of four lanes, with the products of their four pixels."""
        return dot.added(
            C.vload([first], "int32x4"),
            _transposed(A, first, image),
            B.vload([first, 0], "int8x16"),
        )

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4, lanes), image, strides=[_PIXEL, 1], offset_factor=1)
        B = T.match_buffer(b, (lanes, 4), "int8", offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:4, 0:lanes], B[0:lanes, 0:4])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, 4)] = added(C, A, B, 0)
            C[T.ramp(T.int32(4), 1, 4)] = added(C, A, B, 4)
            C[T.ramp(T.int32(8), 1, 4)] = added(C, A, B, 8)
            C[T.ramp(T.int32(12), 1, 4)] = added(C, A, B, 12)

    return _of_window(dot), implementation


def _transposed(pixels: tirx.Buffer, first: int, dtype: str) -> tirx.Expr:
    """Return four pixels of each of four lanes side by side: two rounds of ``zip1``, ``zip2``."""
    rows = [pixels.vload([column, 0], f"{dtype}x16") for column in range(4)]
    upper, end = divmod(first // 4, 2)
    pairs = [_zipped(rows[:2], upper), _zipped(rows[2:], upper)]
    words = _zipped([tirx.reinterpret("int16x8", pair) for pair in pairs], end)
    return tirx.reinterpret(f"{dtype}x16", words)


def _zipped(vectors: list[tirx.Expr], upper: int) -> tirx.Expr:
    """Return the elements of two vectors' lower or upper halves in turn."""
    lanes = int(vectors[0].ty.dtype.lanes)
    own = range(upper * lanes // 2, (upper + 1) * lanes // 2)
    return tirx.Shuffle(vectors, [place for at in own for place in (at, lanes + at)])
