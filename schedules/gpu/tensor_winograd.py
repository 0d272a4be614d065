"""Winograd convolution F(2x2, 3x3) of float16 on tensor cores, in channel blocks of 16 bytes.

Three kernels: images of 16 frequencies; a product for each of them, on tensor cores
(:mod:`.tensor_blocks`); results, with what follows the convolution. A work-item of the first and
the last has the channels of a block of a tile. 16 multiplications replace 36 (Lavin and Gray,
"Fast Algorithms for Convolutional Neural Networks", 2015). Tiles of 4x4 would save more, and make
the error of float16 some ten times as large.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import filled, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.emit import each, hold, int32, registers, when
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.blocked_kernel import BlockedKernel
from tvm_edge.schedules.gpu.tensor_conv import (
    BLOCKS,
    GEOMETRY,
    TensorConv,
    dense_workload,
    pack_stacks,
    position,
)
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import CONFIG, knobs_as_text, read_knobs
from tvm_edge.schedules.winograd import transform_filters_by_channel, transforms

__all__ = [
    "TILE",
    "TensorWinograd",
    "frequency_filters",
    "frequency_images",
    "frequency_products",
    "frequency_results",
    "products_of",
    "units_of_transforms",
]

TILE = 2
"""Outputs of a tile along a line."""

_IMAGES, _RESULTS = "tvm_edge.winograd_images", "tvm_edge.winograd_results"
"""Annotations of the blocks that sum: their :class:`_Tiles` as text."""

_GAIN = 4
"""Images are divided by it, and filters multiplied: no element of the transform is larger than
those of the image, which float16 holds. Sums of four would not be."""

_SIDE = TILE + 2
_LANES = BLOCKS["float16"]

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


@dataclass(frozen=True)
class _Tiles:
    """Convolution, as the transforms around its products are made for it.

    `height`, `width`: of the image; `lines`, `columns`: of the result; `top`, `left`: padding.
    """

    batch: int
    height: int
    width: int
    top: int
    left: int
    lines: int
    columns: int

    @staticmethod
    def of(workload: ConvWorkload) -> _Tiles:
        top, left, _, _ = workload.padding
        sizes = workload.batch, workload.height, workload.width
        return _Tiles(*sizes, top, left, *workload.output)

    @property
    def down(self) -> int:
        """Tiles of a column."""
        return -(-self.lines // TILE)

    @property
    def across(self) -> int:
        """Tiles of a line."""
        return -(-self.columns // TILE)

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.batch * self.down * self.across


def units_of_transforms(workload: ConvWorkload) -> tuple[int, int]:
    """Return the units that each transform moves: image and frequencies, frequencies and result."""
    tiles, conv = _Tiles.of(workload), products_of(workload)
    image = workload.batch * conv.blocks * workload.height * workload.width
    result = conv.filters // _LANES * workload.batch * tiles.lines * tiles.columns
    frequencies = conv.products * tiles.count
    return image + frequencies * conv.blocks, result + frequencies * conv.filters // _LANES


def products_of(workload: ConvWorkload) -> TensorConv:
    """Return the products of a convolution, one for each frequency."""
    tiles = _Tiles.of(workload).count
    return TensorConv.of(_image_of_tiles(workload, tiles), "float16", products=_SIDE**2)


def _image_of_tiles(workload: ConvWorkload, tiles: int) -> ConvWorkload:
    """Return a frequency's product as a convolution: an image of one line, a pixel for each tile.

    A convolution's columns are its pixels.
    """
    one = dense_workload(1, workload.channels, workload.filters)
    return ConvWorkload(**{**vars(one), "width": tiles})


def frequency_filters(weights: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """Filters ``[O, C, 3, 3]`` as ``[16, 1, 1, C/8, O', 8]``: packed ones for each product."""
    conv = products_of(workload)
    transformed = transform_filters_by_channel(_GAIN * weights, TILE).transpose(0, 2, 1)
    return np.stack([pack_stacks(each[..., None, None], conv) for each in transformed])


def frequency_images(image: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute the images of all frequencies: ``[N, C/8, H, W, 8]`` to ``[16, C/8, 1, tiles, 8]``.

    Parameters
    ----------
    image : te.Tensor
    workload : ConvWorkload
        A 3x3 convolution of stride one.
    """
    tiles = _Tiles.of(workload)
    top, left, _, _ = workload.padding
    # Tiles at the border reach beyond the padding where a line has an odd number of results.
    bottom = tiles.down * TILE + 2 - top - workload.height
    right = tiles.across * TILE + 2 - left - workload.width
    padded = pad_image(image, (top, left, bottom, right))
    i, j = te.reduce_axis((0, _SIDE), "i"), te.reduce_axis((0, _SIDE), "j")
    matrix = transforms(TILE)[1]

    def element(f: tirx.Expr, c: tirx.Expr, _: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = tirx.floormod(tirx.floordiv(t, tiles.across), tiles.down) * TILE + i
        column = tirx.floormod(t, tiles.across) * TILE + j
        number = tirx.floordiv(t, tiles.down * tiles.across)
        value = _wide(padded[number, c, line, column, v]) * tirx.const(1 / _GAIN, "float32")
        rows = _entry(matrix, i, tirx.floordiv(f, _SIDE))
        return te.sum(rows * _entry(matrix, j, tirx.floormod(f, _SIDE)) * value, axis=[i, j])

    shape = (_SIDE**2, image.shape[1], 1, tiles.count, _LANES)
    attrs = {_IMAGES: knobs_as_text(tiles)}
    sums = te.compute(shape, element, name="frequencies", attrs=attrs)
    return stored(shape, lambda *at: sums(*at))


def frequency_products(
    images: te.Tensor, filters: te.Tensor, workload: ConvWorkload, knobs: str = ""
) -> te.Tensor:
    """Multiply the images of each frequency by its filters: ``[16, O/8, 1, tiles, 8]``.

    Parameters
    ----------
    images : te.Tensor
        As :func:`frequency_images` returns them.
    filters : te.Tensor
        As :func:`frequency_filters` returns them.
    workload : ConvWorkload
    knobs : str
        A :class:`~tvm_edge.schedules.gpu.tensor_tile.TensorTile`; empty: the schedule's choice.
    """
    conv = products_of(workload)
    co, ci = te.reduce_axis((0, conv.blocks), "co"), te.reduce_axis((0, _LANES), "ci")
    attrs = {GEOMETRY: knobs_as_text(conv)} | ({CONFIG: knobs} if knobs else {})

    def product(f: tirx.Expr, o: tirx.Expr, y: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        own = filters[f, 0, 0, co, position(o * _LANES + v, conv.stack), ci]
        return te.sum(_wide(images[f, co, y, t, ci]) * _wide(own), axis=[co, ci])

    blocks = filled(workload.filters, _LANES) // _LANES
    shape = (conv.products, blocks, 1, conv.columns, _LANES)
    sums = te.compute(shape, product, name="sums", attrs=attrs)
    return stored(shape, lambda *at: sums(*at))


def frequency_results(products: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute the results of all frequencies' products: ``[N, O/8, OH, OW, 8]``.

    Parameters
    ----------
    products : te.Tensor
        As :func:`frequency_products` returns them.
    workload : ConvWorkload
    """
    tiles = _Tiles.of(workload)
    p, q = te.reduce_axis((0, _SIDE), "p"), te.reduce_axis((0, _SIDE), "q")
    matrix = transforms(TILE)[2]

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        tile = (n * tiles.down + tirx.floordiv(y, TILE)) * tiles.across + tirx.floordiv(x, TILE)
        value = _wide(products[p * _SIDE + q, o, 0, tile, v])
        rows = _entry(matrix, p, tirx.floormod(y, TILE))
        return te.sum(rows * _entry(matrix, q, tirx.floormod(x, TILE)) * value, axis=[p, q])

    shape = (tiles.batch, products.shape[1], tiles.lines, tiles.columns, _LANES)
    sums = te.compute(shape, element, name="sums", attrs={_RESULTS: knobs_as_text(tiles)})
    return stored(shape, lambda *at: sums(*at))


def _wide(value: tirx.Expr) -> tirx.Expr:
    return tirx.Cast("float32", value)


def _entry(matrix: np.ndarray, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """Return ``matrix[row, column]`` of constants."""
    at = row * matrix.shape[1] + column
    entry: tirx.Expr = tirx.const(0.0, "float32")
    for place, value in enumerate(matrix.flat):
        if value:
            entry = tirx.Select(at.equal(place), tirx.const(float(value), "float32"), entry)
    return entry


@lru_cache(maxsize=1)
def _source() -> str:
    """The transforms in CUDA C, with their matrices, whose entries are -1, 0 and 1."""
    source = _SOURCE.replace("$GAIN", str(_GAIN))
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
        for annotation, write in ((_IMAGES, _write_images), (_RESULTS, _write_results)):
            found = BlockedKernel.of(func, annotation, product=False)
            if found is not None:
                return write(found, spec)
        return None


def _write_images(found: BlockedKernel, spec: DeviceSpec) -> tirx.PrimFunc | None:
    tiles, operands = read_knobs(_Tiles, found.geometry), found.operands([], "float16")
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
    tiles, operands = read_knobs(_Tiles, found.geometry), found.operands([], "float16")
    if operands is None or operands.first:
        return None
    blocks, count = int(found.accumulators.shape[1]), len(buffers_of(found.func))

    def body(flat: list[Any]) -> None:
        epilogue = found.epilogue_over(flat[:count])

        def write(at: tirx.Expr) -> None:
            block, (number, y, x) = hold(tirx.floordiv(at, tiles.count)), _place(tiles, at)
            accumulators = registers(TILE**2 * _LANES, "float32")
            call = cuda_func_call(
                f"tvm_edge_winograd_results<{operands.planes * tiles.count}>",
                T.address_of(accumulators[0]),
                T.address_of(flat[operands.image][0]),
                at,
                source_code=_source(),
            )
            T.evaluate(call)
            shared = epilogue.of_channels(block, int32(0), _LANES)
            for i in range(TILE):
                for j in range(TILE):
                    bounds = []
                    if i and tiles.lines % TILE:
                        bounds.append(y * TILE + i < tiles.lines)
                    if j and tiles.columns % TILE:
                        bounds.append(x * TILE + j < tiles.columns)
                    first = (i * TILE + j) * _LANES
                    values = [accumulators[first + k] for k in range(_LANES)]
                    pixel = (y * TILE + i) * tiles.columns + x * TILE + j
                    with when(tirx.all(*bounds)) if bounds else nullcontext():
                        epilogue.write_lanes((number, block, pixel, int32(0)), values, shared)

        each(spec, blocks * tiles.count, write)

    return kernel_of(found.func, [], body)


def _place(tiles: _Tiles, at: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Return image, and line and column among its tiles, of a work-item."""
    tile = hold(tirx.floormod(at, tiles.count))
    y = hold(tirx.floormod(tirx.floordiv(tile, tiles.across), tiles.down))
    x = hold(tirx.floormod(tile, tiles.across))
    number = tirx.floordiv(tile, tiles.down * tiles.across)
    return (int32(0) if tiles.batch == 1 else hold(number)), y, x
