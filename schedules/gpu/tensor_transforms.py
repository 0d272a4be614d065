"""Transforms of Winograd's algorithm on tensor cores, in CUDA C.

A work-item has the channels of a block of a tile: it makes the 16 frequencies of its pixels, or the
four results of its frequencies, see :mod:`.tensor_winograd`.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import each, hold, int32, registers, when
from tvm_edge.schedules.gpu.blocked_kernel import BlockedKernel
from tvm_edge.schedules.gpu.tensor_winograd import GAIN, IMAGES, LANES, RESULTS, TILE, Tiles
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.schedules.winograd import transforms

__all__ = ["TensorWinograd"]

_SOURCE = r"""
#ifndef TVM_EDGE_TENSOR_WINOGRAD
#define TVM_EDGE_TENSOR_WINOGRAD
#include <cuda_fp16.h>
// Sum of the values of a line, or column, by the factors -1, 0 and 1 of the transform.
__device__ __forceinline__ half2 tvm_edge_combined(const half2* values, int step, int column) {
  constexpr int FACTORS[4][4] = $INPUT;
  half2 sum = __float2half2_rn(0.0f);
  bool some = false;
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    const int factor = FACTORS[i][column];
    if (factor == 0) continue;
    const half2 value = values[i * step];
    sum = !some ? (factor > 0 ? value : __hneg2(value))
                : (factor > 0 ? __hadd2(sum, value) : __hsub2(sum, value));
    some = true;
  }
  return sum;
}
// Images of frequencies, `FURTHER` units from each other, of a tile at `line` and `column`.
template <int H, int W, int FURTHER>
__device__ __forceinline__ void tvm_edge_winograd_images(void* result, const void* image, int first,
                                                         int plane, int line, int column) {
  const uint4* pixels = (const uint4*)image + (plane * H + line) * W + column;
  half2 tile[4][4][4], lines[4][4][4];  // line, column, pair of channels
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint4 loaded = make_uint4(0, 0, 0, 0);
      if ((unsigned)(line + i) < (unsigned)H && (unsigned)(column + j) < (unsigned)W)
        loaded = __ldg(pixels + i * W + j);
#pragma unroll
      for (int v = 0; v < 4; v++)
        tile[i][j][v] = __hmul2(((const half2*)&loaded)[v], __float2half2_rn(1.0f / $GAIN));
    }
#pragma unroll
  for (int p = 0; p < 4; p++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int v = 0; v < 4; v++) lines[p][j][v] = tvm_edge_combined(&tile[0][j][v], 16, p);
#pragma unroll
  for (int p = 0; p < 4; p++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      uint4 made;
#pragma unroll
      for (int v = 0; v < 4; v++)
        ((half2*)&made)[v] = tvm_edge_combined(&lines[p][0][v], 4, q);
      ((uint4*)result)[(p * 4 + q) * FURTHER + first] = made;
    }
}
// Four results of the eight channels of a block, of frequencies `FURTHER` units from each other.
template <int FURTHER>
__device__ __forceinline__ void tvm_edge_winograd_results(float* acc, const void* products,
                                                          int first) {
  constexpr int FACTORS[4][2] = $OUTPUT;
#pragma unroll
  for (int k = 0; k < 32; k++) acc[k] = 0.0f;
#pragma unroll
  for (int q = 0; q < 4; q++) {
    float lines[2][8] = {};
#pragma unroll
    for (int p = 0; p < 4; p++) {
      const uint4 loaded = __ldg((const uint4*)products + (p * 4 + q) * FURTHER + first);
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float value = __half2float(((const half*)&loaded)[v]);
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (FACTORS[p][i] != 0) lines[i][v] += FACTORS[p][i] > 0 ? value : -value;
      }
    }
#pragma unroll
    for (int k = 0; k < 32; k++) {
      const int factor = FACTORS[q][k / 8 % 2];
      if (factor != 0) acc[k] += factor > 0 ? lines[k / 16][k % 8] : -lines[k / 16][k % 8];
    }
  }
}
#endif
"""


@lru_cache(maxsize=1)
def _source() -> str:
    """The transforms in CUDA C, with their matrices, whose entries are -1, 0 and 1."""
    source = _SOURCE.replace("$GAIN", str(GAIN))
    for name, matrix in zip(("$INPUT", "$OUTPUT"), transforms(TILE)[1:], strict=True):
        rows = (", ".join(str(int(value)) for value in row) for row in matrix)
        source = source.replace(name, "{" + ", ".join(f"{{{row}}}" for row in rows) + "}")
    return source


class TensorWinograd(ScheduleRule):
    """Transforms around the products of Winograd's algorithm on tensor cores."""

    name = "tensor_winograd"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is a transform, of results with an epilogue."""
        if not spec.tensor_cores:
            return None
        for annotation, write in ((IMAGES, _write_images), (RESULTS, _write_results)):
            found = BlockedKernel.of(func, annotation, product=False)
            if found is not None:
                return write(found, spec)
        return None


def _write_images(found: BlockedKernel, spec: DeviceSpec) -> tirx.PrimFunc | None:
    tiles, operands = read_knobs(Tiles, found.geometry), found.operands([], "float16")
    if operands is None or len(buffers_of(found.func)) != 2:  # something follows the transform
        return None
    blocks = int(found.accumulators.shape[1])

    def body(flat: list[Any]) -> None:
        image, result = flat[operands.image], flat[-1]

        def write(at: tirx.Expr) -> None:
            block, (number, y, x) = hold(tirx.floordiv(at, tiles.count)), _place(tiles, at)
            numbers = (tiles.height, tiles.width, blocks * tiles.count)
            call = cuda_func_call(
                f"tvm_edge_winograd_images<{', '.join(map(str, numbers))}>",
                T.address_of(result[0]),
                T.address_of(image[0]),
                at,
                number * operands.planes + operands.first + block,
                y * TILE - tiles.top,
                x * TILE - tiles.left,
                source_code=_source(),
            )
            T.evaluate(call)

        each(spec, blocks * tiles.count, write)

    return kernel_of(found.func, [], body)


def _write_results(found: BlockedKernel, spec: DeviceSpec) -> tirx.PrimFunc | None:
    tiles, operands = read_knobs(Tiles, found.geometry), found.operands([], "float16")
    if operands is None or operands.first:
        return None
    blocks, count = int(found.accumulators.shape[1]), len(buffers_of(found.func))

    def body(flat: list[Any]) -> None:
        epilogue = found.epilogue_over(flat[:count])

        def write(at: tirx.Expr) -> None:
            block, (number, y, x) = hold(tirx.floordiv(at, tiles.count)), _place(tiles, at)
            accumulators = registers(TILE**2 * LANES, "float32")
            call = cuda_func_call(
                f"tvm_edge_winograd_results<{operands.planes * tiles.count}>",
                T.address_of(accumulators[0]),
                T.address_of(flat[operands.image][0]),
                at,
                source_code=_source(),
            )
            T.evaluate(call)
            shared = epilogue.of_channels(block, int32(0), LANES)
            for i in range(TILE):
                for j in range(TILE):
                    bounds = []
                    if i and tiles.lines % TILE:
                        bounds.append(y * TILE + i < tiles.lines)
                    if j and tiles.columns % TILE:
                        bounds.append(x * TILE + j < tiles.columns)
                    first = (i * TILE + j) * LANES
                    values = [accumulators[first + k] for k in range(LANES)]
                    pixel = (y * TILE + i) * tiles.columns + x * TILE + j
                    with when(tirx.all(*bounds)) if bounds else nullcontext():
                        epilogue.write_lanes((number, block, pixel, int32(0)), values, shared)

        each(spec, blocks * tiles.count, write)

    return kernel_of(found.func, [], body)


def _place(tiles: Tiles, at: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Return image, and line and column among its tiles, of a work-item."""
    tile = hold(tirx.floormod(at, tiles.count))
    y = hold(tirx.floormod(tirx.floordiv(tile, tiles.across), tiles.down))
    x = hold(tirx.floormod(tile, tiles.across))
    number = tirx.floordiv(tile, tiles.down * tiles.across)
    return (int32(0) if tiles.batch == 1 else hold(number)), y, x
