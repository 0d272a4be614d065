"""Windows over images of float16 in blocks of eight channels: depthwise convolutions.

A work-item has eight channels of several pixels. A pixel of its image is one load of 16 bytes,
which all windows that contain it share.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

from tvm import te, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import filled, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.emit import each, hold, int32, registers, when
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.blocked_kernel import BlockedKernel, Operands
from tvm_edge.schedules.gpu.tensor_conv import BLOCK
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.schedules.open_lengths import divides

__all__ = ["HalvesWindow", "depthwise_halves"]

_GEOMETRY = "tvm_edge.halves_window"
"""Annotation of the block that reduces: its :class:`_Windows` as text."""

# Work-items for each core that hide the latency of memory.
_ITEMS_PER_CORE = 1024

_SOURCE = r"""
#ifndef TVM_EDGE_HALVES_WINDOW
#define TVM_EDGE_HALVES_WINDOW
template <int LINES, int COLUMNS, int H, int W, int BLOCKS, int KH, int KW, int SH, int SW, int DH,
          int DW>
__device__ __forceinline__ void tvm_edge_halves_window(
    float* acc, const half* image, const half* filters, int plane, int block, int line,
    int column) {
  constexpr int TALL = (LINES - 1) * SH + (KH - 1) * DH + 1;
  constexpr int WIDE = (COLUMNS - 1) * SW + (KW - 1) * DW + 1;
  const uint4* pixels = (const uint4*)image + (plane * H + line) * W + column;
  const uint4* taps = (const uint4*)filters + block;
#pragma unroll
  for (int i = 0; i < LINES * COLUMNS * 8; i++) acc[i] = 0;
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    if ((unsigned)(line + r) >= (unsigned)H) continue;
#pragma unroll
    for (int c = 0; c < WIDE; c++) {
      uint4 loaded = make_uint4(0, 0, 0, 0);
      if ((unsigned)(column + c) < (unsigned)W) loaded = __ldg(pixels + r * W + c);
      float values[8];
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float2 pair = __half22float2(((const half2*)&loaded)[v]);
        values[2 * v] = pair.x;
        values[2 * v + 1] = pair.y;
      }
#pragma unroll
      for (int ky = 0; ky < KH; ky++)
#pragma unroll
        for (int kx = 0; kx < KW; kx++) {
          const int y = r - ky * DH, x = c - kx * DW;
          if (y < 0 || y % SH || y / SH >= LINES || x < 0 || x % SW || x / SW >= COLUMNS) continue;
          const uint4 tap = __ldg(taps + (ky * KW + kx) * BLOCKS);
          float* own = acc + (y / SH * COLUMNS + x / SW) * 8;
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float2 pair = __half22float2(((const half2*)&tap)[v]);
            own[2 * v] += values[2 * v] * pair.x;
            own[2 * v + 1] += values[2 * v + 1] * pair.y;
          }
        }
    }
  }
}
#endif
"""


@dataclass(frozen=True)
class _Windows:
    """Depthwise convolution, as its kernel is made for it."""

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

    @staticmethod
    def of(workload: ConvWorkload) -> _Windows:
        return _Windows(
            workload.batch,
            workload.height,
            workload.width,
            filled(workload.channels, BLOCK) // BLOCK,
            *workload.kernel,
            *workload.strides,
            *workload.dilation,
            *workload.padding[:2],
            *workload.output,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the kernel's template takes."""
        return tuple(getattr(self, each.name) for each in fields(self)[1:10])


def depthwise_halves(image: te.Tensor, filters: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute a depthwise convolution of ``[N, C/8, H, W, 8]``.

    Parameters
    ----------
    image : te.Tensor
    filters : te.Tensor
        ``[KH, KW, C']``, of whole blocks.
    workload : ConvWorkload
    """
    windows = _Windows.of(workload)
    padded = pad_image(image, workload.padding)
    ky = te.reduce_axis((0, windows.kernel_h), "ky")
    kx = te.reduce_axis((0, windows.kernel_w), "kx")

    def product(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = y * windows.stride_h + ky * windows.dilation_h
        column = x * windows.stride_w + kx * windows.dilation_w
        pixel = tirx.Cast("float32", padded[n, o, line, column, v])
        tap = tirx.Cast("float32", filters[ky, kx, o * BLOCK + v])
        return te.sum(pixel * tap, axis=[ky, kx])

    shape = (windows.batch, windows.blocks, windows.lines, windows.columns, BLOCK)
    attrs = {_GEOMETRY: knobs_as_text(windows)}
    accumulators = te.compute(shape, product, name="sums", attrs=attrs)
    return stored(shape, lambda *i: accumulators(*i))


class HalvesWindow(ScheduleRule):
    """Depthwise convolutions of float16 in blocks of eight channels, in CUDA C."""

    name = "halves_window"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such convolution and its epilogue."""
        if not spec.tensor_cores:
            return None
        found = BlockedKernel.of(func, _GEOMETRY)
        if found is None:
            return None
        windows = read_knobs(_Windows, found.geometry)
        operands = found.operands([windows.kernel_h, windows.kernel_w, windows.blocks * BLOCK])
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
            accumulators = registers(lines * columns * BLOCK, "float32")
            numbers = (lines, columns, *windows.numbers)
            call = cuda_func_call(
                f"tvm_edge_halves_window<{', '.join(map(str, numbers))}>",
                *(T.address_of(each[0]) for each in (accumulators, image, filters)),
                number * operands.planes + operands.first + block,
                block,
                y * windows.stride_h - windows.top,
                x * windows.stride_w - windows.left,
                source_code=_SOURCE,
            )
            T.evaluate(call)
            shared = epilogue.of_channels(block, int32(0), BLOCK)
            for i in range(lines):
                for j in range(columns):
                    bounds = []
                    if not divides(lines, windows.lines) and i:
                        bounds.append(y + i < windows.lines)
                    if not divides(columns, windows.columns) and j:
                        bounds.append(x + j < windows.columns)
                    first = (i * columns + j) * BLOCK
                    values = [accumulators[first + k] for k in range(BLOCK)]
                    pixel = (y + i) * windows.columns + x + j
                    with when(tirx.all(*bounds)) if bounds else nullcontext():
                        epilogue.write_lanes((number, block, pixel, int32(0)), values, shared)

        each(spec, windows.batch * windows.blocks * down * across, write)

    return kernel_of(found.func, [], body)


def _tile(windows: _Windows, spec: DeviceSpec) -> tuple[int, int]:
    """Choose lines and columns of a work-item: as many as leave enough work-items."""
    wanted = max(spec.cores, 1) * _ITEMS_PER_CORE
    planes = windows.batch * windows.blocks
    for lines, columns in ((2, 4), (1, 4), (2, 2), (1, 2)):
        tiles = -(-windows.lines // lines) * -(-windows.columns // columns)
        if planes * tiles >= wanted:
            return lines, columns
    return 1, 1
