"""Windows over images in channel blocks of 16 bytes: depthwise convolutions and pools.

Images are of float16, int8 or float32. A work-item has the channels of a block of several pixels.
A pixel of its image is one load of 16 bytes, which all windows that contain it share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from tvm import te, tirx, topi
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import filled, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.emit import each, hold, int32, registers, when
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.blocked_kernel import BlockedKernel, Operands
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.schedules.open_lengths import divides

__all__ = ["UnitWindow", "depthwise_units", "pool_units"]

_GEOMETRY = "tvm_edge.unit_window"
"""Annotation of the block that reduces: its :class:`_Windows` as text."""

_DEPTHWISE, _MAXIMUM, _SUM = range(3)
_LEAST = {"float16": -65504.0, "int8": -128, "float32": float(np.finfo("float32").min)}
_ACCUMULATORS = {"float16": "float32", "int8": "int32", "float32": "float32"}

# Work-items for each core that hide the latency of memory.
_ITEMS_PER_CORE = 1024

_SOURCE = r"""
#ifndef TVM_EDGE_UNIT_WINDOW
#define TVM_EDGE_UNIT_WINDOW
#include <cuda_fp16.h>
template <int LANES>
struct tvm_edge_lanes;
template <>
struct tvm_edge_lanes<8> {  // float16
  using Number = float;
  static constexpr float LEAST = -65504.0f;
  static __device__ __forceinline__ void read(Number* values, const uint4& loaded) {
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float2 pair = __half22float2(((const half2*)&loaded)[v]);
      values[2 * v] = pair.x;
      values[2 * v + 1] = pair.y;
    }
  }
};
template <>
struct tvm_edge_lanes<16> {  // int8
  using Number = int;
  static constexpr int LEAST = -128;
  static __device__ __forceinline__ void read(Number* values, const uint4& loaded) {
#pragma unroll
    for (int v = 0; v < 16; v++) {  // a byte, and its sign three times
      const unsigned word = ((const unsigned*)&loaded)[v / 4];
      asm("prmt.b32 %0, %1, 0, %2;"
          : "=r"(values[v]) : "r"(word), "r"(0x8880 + 0x1111 * (v % 4)));
    }
  }
};
template <>
struct tvm_edge_lanes<4> {  // float32
  using Number = float;
  static constexpr float LEAST = -3.402823466e+38f;
  static __device__ __forceinline__ void read(Number* values, const uint4& loaded) {
#pragma unroll
    for (int v = 0; v < 4; v++) values[v] = ((const float*)&loaded)[v];
  }
};
template <int LANES, int ZERO, int KIND, int LINES, int COLUMNS, int H, int W, int BLOCKS, int KH,
          int KW, int SH, int SW, int DH, int DW>
__device__ __forceinline__ void tvm_edge_window(
    typename tvm_edge_lanes<LANES>::Number* acc, const void* image, const void* filters, int plane,
    int block, int line, int column) {
  using Lanes = tvm_edge_lanes<LANES>;
  using Number = typename Lanes::Number;
  constexpr int TALL = (LINES - 1) * SH + (KH - 1) * DH + 1;
  constexpr int WIDE = (COLUMNS - 1) * SW + (KW - 1) * DW + 1;
  const uint4* pixels = (const uint4*)image + (plane * H + line) * W + column;
  const uint4* taps = (const uint4*)filters + block;
#pragma unroll
  for (int i = 0; i < LINES * COLUMNS * LANES; i++) acc[i] = KIND == 1 ? Lanes::LEAST : 0;
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    const bool seen = (unsigned)(line + r) < (unsigned)H;
    if (!seen && ZERO == 0) continue;
#pragma unroll
    for (int c = 0; c < WIDE; c++) {
      constexpr unsigned zeros = (ZERO & 255) * 0x01010101u;
      uint4 loaded = make_uint4(zeros, zeros, zeros, zeros);
      const bool inside = seen && (unsigned)(column + c) < (unsigned)W;
      if (inside) loaded = __ldg(pixels + r * W + c);
      if (KIND == 1 && !inside) continue;
      Number values[LANES];
      Lanes::read(values, loaded);
#pragma unroll
      for (int ky = 0; ky < KH; ky++)
#pragma unroll
        for (int kx = 0; kx < KW; kx++) {
          const int y = r - ky * DH, x = c - kx * DW;
          if (y < 0 || y % SH || y / SH >= LINES || x < 0 || x % SW || x / SW >= COLUMNS) continue;
          Number* own = acc + (y / SH * COLUMNS + x / SW) * LANES;
          if (KIND > 0) {
#pragma unroll
            for (int v = 0; v < LANES; v++)
              own[v] = KIND == 1 ? max(own[v], values[v]) : own[v] + values[v];
            continue;
          }
          Number tap[LANES];
          Lanes::read(tap, __ldg(taps + (ky * KW + kx) * BLOCKS));
#pragma unroll
          for (int v = 0; v < LANES; v++) own[v] += values[v] * tap[v];
        }
    }
  }
}
#endif
"""


@dataclass(frozen=True)
class _Windows:
    """Depthwise convolution or pool, as its kernel is made for it."""

    kind: int
    batch: int
    height: int
    width: int
    blocks: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int
    lines: int
    columns: int
    lanes: int
    zero: int

    @staticmethod
    def of(workload: ConvWorkload, dtype: str, zero: int) -> _Windows:
        block = BLOCKS[dtype]
        return _Windows(
            _DEPTHWISE,
            workload.batch,
            workload.height,
            workload.width,
            filled(workload.channels, block) // block,
            *workload.kernel,
            *workload.strides,
            *workload.dilation,
            *workload.padding[:2],
            *workload.output,
            block,
            zero,
        )

    @property
    def dtype(self) -> str:
        """Type of the image."""
        return next(dtype for dtype, lanes in BLOCKS.items() if lanes == self.lanes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Last arguments of the kernel's template."""
        return tuple(getattr(self, each.name) for each in fields(self)[2:11])


def depthwise_units(
    image: te.Tensor, filters: te.Tensor, workload: ConvWorkload, zero: int = 0
) -> te.Tensor:
    """Compute a depthwise convolution of ``[N, C/b, H, W, b]``; that of int8 is of int32.

    Parameters
    ----------
    image : te.Tensor
    filters : te.Tensor
        ``[KH, KW, C']``, of whole blocks.
    workload : ConvWorkload
    zero : int
        What an image of int8 is padded with.
    """
    windows = _Windows.of(workload, str(image.dtype), zero)
    wide = _ACCUMULATORS[windows.dtype]
    padded = pad_image(image, workload.padding, zero)
    ky = te.reduce_axis((0, windows.kernel_h), "ky")
    kx = te.reduce_axis((0, windows.kernel_w), "kx")

    def product(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = y * windows.stride_h + ky * windows.dilation_h
        column = x * windows.stride_w + kx * windows.dilation_w
        pixel = padded[n, o, line, column, v]
        tap = filters[ky, kx, o * windows.lanes + v]
        if windows.dtype != wide:
            pixel, tap = tirx.Cast(wide, pixel), tirx.Cast(wide, tap)
        return te.sum(pixel * tap, axis=[ky, kx])

    shape = (windows.batch, windows.blocks, windows.lines, windows.columns, windows.lanes)
    attrs = {_GEOMETRY: knobs_as_text(windows)}
    accumulators = te.compute(shape, product, name="sums", attrs=attrs)
    if windows.dtype != "float16":
        return accumulators
    return stored(shape, lambda *i: accumulators(*i))


def pool_units(
    image: te.Tensor,
    shape: Sequence[int],
    sizes: Sequence[Sequence[int]],
    *,
    maximum: bool,
    counts_padding: bool = False,
) -> te.Tensor:
    """Compute a pool of ``[N, C/b, H, W, b]``, of int8 a maximum.

    Parameters
    ----------
    image : te.Tensor
    shape : sequence of int
        Lines and columns of the result.
    sizes : sequence of sequence of int
        Window, strides, dilation, and padding at the top and on the left.
    maximum : bool
        Or else the mean.
    counts_padding : bool
        Whether a mean counts padding.
    """
    batch, blocks, height, width, block = (int(size) for size in image.shape)
    dtype = str(image.dtype)
    kernel, strides, dilation, padding = sizes
    windows = _Windows(
        _MAXIMUM if maximum else _SUM,
        *(batch, height, width, blocks, *kernel, *strides, *dilation, *padding, *shape, block, 0),
    )
    ends = [
        max((count - 1) * stride + (taps - 1) * step + 1 - before - size, 0)
        for count, stride, taps, step, before, size in zip(
            shape, strides, kernel, dilation, padding, (height, width), strict=True
        )
    ]
    value = tirx.const(_LEAST[dtype] if maximum else 0, dtype)
    padded = image
    if any((*padding, *ends)):
        before, after = [0, 0, *padding, 0], [0, 0, *ends, 0]
        padded = topi.nn.pad(image, before, after, value, name="padded")
    axes = [
        te.reduce_axis((0, taps), name) for taps, name in zip(kernel, ("ky", "kx"), strict=True)
    ]

    def pooled(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = y * strides[0] + axes[0] * dilation[0]
        column = x * strides[1] + axes[1] * dilation[1]
        reduce = te.max if maximum else te.sum
        pixel = padded[n, o, line, column, v]
        # TVM does not narrow indices beside the least int32, which a maximum of them begins with.
        return reduce(tirx.Cast("float32", pixel) if dtype == "float16" else pixel, axis=axes)

    def inside(at: tirx.Expr, axis: int) -> tirx.Expr:
        first = at * strides[axis] - padding[axis]
        last = tirx.min(first + kernel[axis], (height, width)[axis])
        return last - tirx.max(first, 0)

    full = (batch, blocks, *shape, block)
    attrs = {_GEOMETRY: knobs_as_text(windows)}
    accumulators = te.compute(full, pooled, name="pooled", attrs=attrs)

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        own = accumulators(n, o, y, x, v)
        if maximum:
            return own
        if counts_padding or not any((*padding, *ends)):
            return own * tirx.const(1 / (kernel[0] * kernel[1]), "float32")
        return own / tirx.Cast("float32", inside(y, 0) * inside(x, 1))

    if dtype == "float16":
        return stored(full, element)
    return accumulators if maximum else te.compute(full, element, name="mean")


class UnitWindow(ScheduleRule):
    """Depthwise convolutions and pools in channel blocks of 16 bytes, in CUDA C."""

    name = "unit_window"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one of them and its epilogue."""
        if not spec.tensor_cores:
            return None
        found = BlockedKernel.of(func, _GEOMETRY, product=False)
        if found is None:
            return None
        windows = read_knobs(_Windows, found.geometry)
        filters = [windows.kernel_h, windows.kernel_w, windows.blocks * windows.lanes]
        operands = found.operands([] if windows.kind else filters, windows.dtype)
        if operands is None:
            return None
        return _kernel(found, windows, operands, spec)


def _kernel(
    found: BlockedKernel, windows: _Windows, operands: Operands, spec: DeviceSpec
) -> tirx.PrimFunc:
    """Write the launch: a work-item for each tile of a channel block."""
    lines, columns = _tile(windows, spec)
    down, across = -(-windows.lines // lines), -(-windows.columns // columns)
    count = len(buffers_of(found.func))

    def body(flat: list[Any]) -> None:
        epilogue = found.epilogue_over(flat[:count])
        image, filters = flat[operands.image], flat[operands.filters]

        def write(at: tirx.Expr) -> None:
            x = hold(tirx.floormod(at, across) * columns)
            rest = tirx.floordiv(at, across)
            y = hold(tirx.floormod(rest, down) * lines)
            rest = tirx.floordiv(rest, down)
            block = hold(tirx.floormod(rest, windows.blocks))
            number = int32(0) if windows.batch == 1 else hold(tirx.floordiv(rest, windows.blocks))
            lanes = windows.lanes
            accumulators = registers(lines * columns * lanes, _ACCUMULATORS[windows.dtype])
            numbers = (lanes, windows.zero, windows.kind, lines, columns, *windows.numbers)
            call = cuda_func_call(
                f"tvm_edge_window<{', '.join(map(str, numbers))}>",
                *(T.address_of(each[0]) for each in (accumulators, image, filters)),
                number * operands.planes + operands.first + block,
                block,
                y * windows.stride_h - windows.top,
                x * windows.stride_w - windows.left,
                source_code=_SOURCE,
            )
            T.evaluate(call)
            shared = epilogue.of_channels(block, int32(0), lanes)
            for i in range(lines):
                for j in range(columns):
                    bounds = []
                    if not divides(lines, windows.lines) and i:
                        bounds.append(y + i < windows.lines)
                    if not divides(columns, windows.columns) and j:
                        bounds.append(x + j < windows.columns)
                    first = (i * columns + j) * lanes
                    values = [accumulators[first + k] for k in range(lanes)]
                    if found.accumulators.dtype == "int8":
                        values = [tirx.Cast("int8", value) for value in values]
                    pixel = (y + i) * windows.columns + x + j
                    with when(tirx.all(*bounds)) if bounds else nullcontext():
                        epilogue.write_lanes((number, block, pixel, int32(0)), values, shared)

        each(spec, windows.batch * windows.blocks * down * across, write)

    return kernel_of(found.func, [], body)


def _tile(windows: _Windows, spec: DeviceSpec) -> tuple[int, int]:
    """Choose lines and columns of a work-item: as many as leave enough work-items.

    Lines share loads, and neighbouring work-items still load neighbouring pixels. With several
    columns they would not: mobilenet_v2's depthwise convolutions then take up to twice as long.
    """
    wanted = max(spec.cores, 1) * _ITEMS_PER_CORE
    planes = windows.batch * windows.blocks
    for lines, columns in ((4, 1), (2, 1)):
        tiles = -(-windows.lines // lines) * -(-windows.columns // columns)
        if planes * tiles >= wanted:
            return lines, columns
    return 1, 1
