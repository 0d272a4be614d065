"""CUDA C of implicit GEMM on tensor cores, and the calls of it.

An operand lies in units of 16 bytes: 8 float16, 16 int8 or 4 float32, which are neighbouring
channels of a pixel or of a filter. ``cp.async`` brings units to shared memory while those of
earlier steps are multiplied. The eight rows of a matrix that ``ldmatrix`` reads are eight
neighbouring units there, 128 bytes of all banks, so that nothing needs to be swizzled. One
instruction multiplies two units of a row, of whatever type: m16n8k16 of float16, m16n8k32 of int8,
m16n8k8 of tf32.

Pixels in order are copied for each tap. Those of a patch are copied once, with what is around them:
:mod:`.tensor_patch`.

Turing has no ``cp.async``: units wait in registers while the step before them is multiplied. Its
instructions multiply one unit of a row: m16n8k8 of float16, and m8n8k16 of int8, half of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.gpu.tensor_patch import PATCH

__all__ = ["multiply_tile"]

_TILE = (
    r"""
#ifndef TVM_EDGE_TENSOR_CORES
#define TVM_EDGE_TENSOR_CORES
"""
    + PATCH
    + r"""
// Copy a unit. Where it does not exist, all its bytes are `ZERO`.
template <bool L1, int ZERO>
__device__ __forceinline__ void tvm_edge_copy(unsigned target, const void* source, bool exists) {
  if (ZERO != 0 && !exists) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};"
                 ::"r"(target), "r"((ZERO & 255) * 0x01010101u) : "memory");
    return;
  }
  const int bytes = exists ? 16 : 0;  // none is read, and zeros are written
  if (L1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(bytes) : "memory");
  }
}
// The same in two parts, for GPUs without cp.async: to registers, and from there.
template <int ZERO>
__device__ __forceinline__ void tvm_edge_read(uint4& r, const void* source, bool exists) {
  r.x = r.y = r.z = r.w = (ZERO & 255) * 0x01010101u;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0;\n"
               "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w) : "l"(source), "r"((int)exists));
}
__device__ __forceinline__ void tvm_edge_write(unsigned target, const uint4& r) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(target), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
}
__device__ __forceinline__ void tvm_edge_matrices(unsigned* r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void tvm_edge_two_matrices(unsigned* r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
// What two units of `LANES` channels are multiplied by, in `TIMES` instructions or pairs of them.
template <int LANES, bool ASYNC>
struct tvm_edge_unit;
#define TVM_EDGE_MULTIPLY(TYPES, LETTER)                                                      \
  asm("mma.sync.aligned." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "             \
      "{%0, %1, %2, %3};"                                                                     \
      : "+" LETTER(c[0]), "+" LETTER(c[1]), "+" LETTER(c[2]), "+" LETTER(c[3])                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <>
struct tvm_edge_unit<8, true> {  // float16
  using Sum = float;
  static constexpr int TIMES = 1;
  static __device__ __forceinline__ void multiply(Sum* c, const unsigned* a, const unsigned* b,
                                                  int) {
    TVM_EDGE_MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32", "f");
  }
};
template <>
struct tvm_edge_unit<16, true> {  // int8
  using Sum = int;
  static constexpr int TIMES = 1;
  static __device__ __forceinline__ void multiply(Sum* c, const unsigned* a, const unsigned* b,
                                                  int) {
    TVM_EDGE_MULTIPLY("m16n8k32.row.col.s32.s8.s8.s32", "r");
  }
};
template <>
struct tvm_edge_unit<4, true> {  // float32, of which filters are rounded to tf32
  using Sum = float;
  static constexpr int TIMES = 1;
  static __device__ __forceinline__ void multiply(Sum* c, const unsigned* a, const unsigned* b,
                                                  int) {
    TVM_EDGE_MULTIPLY("m16n8k8.row.col.f32.tf32.tf32.f32", "f");
  }
};
template <>
struct tvm_edge_unit<8, false> {
  using Sum = float;
  static constexpr int TIMES = 2;
  static __device__ __forceinline__ void multiply(Sum* c, const unsigned* a, const unsigned* b,
                                                  int k) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
  }
};
template <>
struct tvm_edge_unit<16, false> {
  using Sum = int;
  static constexpr int TIMES = 2;
  static __device__ __forceinline__ void multiply(Sum* c, const unsigned* a, const unsigned* b,
                                                  int k) {
#pragma unroll
    for (int i = 0; i < 2; i++)  // rows 0 to 7, and 8 to 15
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+r"(c[2 * i]), "+r"(c[2 * i + 1]) : "r"(a[2 * k + i]), "r"(b[k]));
  }
};
// All but `LEFT` copies of a work-item have arrived, and all of its work-group's: only the warps
// of this kernel meet, as it may be one of several in a launch.
template <bool ASYNC, int LEFT, int ITEMS>
__device__ __forceinline__ void tvm_edge_wait() {
  if (ASYNC) asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
  asm volatile("bar.sync 1, %0;" ::"n"(ITEMS) : "memory");
}
// A unit of an image, as its address; `FEW`: as its number, which is one register and not two.
template <bool FEW>
struct tvm_edge_place {
  using Type = const uint4*;
  static __device__ __forceinline__ Type of(const void* image, int number) {
    return (const uint4*)image + number;
  }
  static __device__ __forceinline__ const uint4* at(const void*, Type place, int further) {
    return place + further;
  }
};
template <>
struct tvm_edge_place<true> {
  using Type = int;
  static __device__ __forceinline__ Type of(const void*, int number) { return number; }
  static __device__ __forceinline__ const uint4* at(const void* image, Type place, int further) {
    return (const uint4*)image + (place + further);
  }
};
// A tile of filters (rows) by pixels (columns): see TensorTile and TensorConv for the parameters.
// `ASYNC`: by cp.async; otherwise there are two stages.
template <bool ASYNC, int LANES, int ZERO, int ROWS, int COLUMNS, int DOWN, int BESIDE, int WARPS,
          int DEPTH, int STAGES, int CACHED, int PATCH, int STEPS, bool WHOLE, int BATCH,
          int BLOCKS, int H, int W, int FILTERS, int KH, int KW, int SH, int SW, int TOP, int LEFT,
          int DH, int DW, int OH, int OW>
__device__ __forceinline__ void tvm_edge_tensor_conv(
    typename tvm_edge_unit<LANES, ASYNC>::Sum* acc, const void* image, const void* filters,
    unsigned char* memory, int first_row, int first_column, int first_step) {
  using Unit = tvm_edge_unit<LANES, ASYNC>;
  constexpr int ACROSS = COLUMNS / (BESIDE * 8), SHARE = ROWS / (DOWN * 16) * ACROSS;
  constexpr int ITEMS = SHARE * WARPS * 32, TAPS = KH * KW, UNITS = BLOCKS * TAPS;
  // A step is one tap of some blocks of a patch, whose pixels lie before all stages.
  using Patch = tvm_edge_patch<COLUMNS, PATCH, KH, KW, DH, DW, OH, OW>;
  constexpr int OWN_BLOCKS = STEPS / TAPS * DEPTH, BEFORE = PATCH ? OWN_BLOCKS * Patch::BYTES : 0;
  constexpr int FILTER_UNITS = DEPTH * ROWS, PIXEL_UNITS = PATCH ? 0 : DEPTH * COLUMNS;
  constexpr int FILTER_LOADS = (FILTER_UNITS + ITEMS - 1) / ITEMS;
  constexpr int PIXEL_LOADS = (PIXEL_UNITS + ITEMS - 1) / ITEMS;
  constexpr int STAGE = (FILTER_UNITS + PIXEL_UNITS) * 16;
  constexpr int PIECES = DEPTH / (2 * WARPS), SHARES = ASYNC && PIECES > 1 ? 2 : 1;
  // A step of whole blocks, or of one tap, has the same tap for all work-items.
  constexpr bool TOGETHER = BLOCKS % DEPTH == 0 || TAPS == 1;
  static_assert(KH <= 32 && KW <= 32, "a line of a window has a bit for each tap");
  static_assert(ASYNC || STAGES == 2, "registers are the third stage");
  static_assert(PATCH == 0 || (ASYNC && SH == 1 && SW == 1), "see what suits a patch");
  const unsigned before = (unsigned)__cvta_generic_to_shared(memory), base = before + BEFORE;
  const int item = threadIdx.x, lane = item & 31, warp = item >> 5;
  const int slice = warp / SHARE, down = warp % SHARE / ACROSS, beside = warp % ACROSS;

  // Of a load of pixels: its unit at the first tap, and the lines and columns of the window that
  // are inside the image, a bit each. Many loads have few registers, or others would spill: both
  // are one.
  constexpr bool FEW = PIXEL_LOADS > 8, PACKED = FEW && KH + KW <= 32;
  using Place = tvm_edge_place<FEW>;
  typename Place::Type pixel[PIXEL_LOADS + 1];
  unsigned lines[PIXEL_LOADS + 1], columns[PACKED ? 1 : PIXEL_LOADS + 1];
#pragma unroll
  for (int s = 0; s < PIXEL_LOADS; s++) {
    const int i = item + s * ITEMS, p = first_column + i % COLUMNS;
    const bool exists = p < BATCH * OH * OW && i < PIXEL_UNITS;
    const int n = BATCH == 1 ? 0 : p / (OH * OW), q = BATCH == 1 ? p : p % (OH * OW);
    const int line = q / OW * SH - TOP, column = q % OW * SW - LEFT;
    unsigned inside = 0, across = 0;
#pragma unroll
    for (int y = 0; y < KH; y++) inside |= ((unsigned)(line + y * DH) < (unsigned)H) << y;
#pragma unroll
    for (int x = 0; x < KW; x++) across |= ((unsigned)(column + x * DW) < (unsigned)W) << x;
    if (PACKED) inside |= across << KH % 32;
    lines[s] = exists ? inside : 0;
    if (!PACKED) columns[s] = across;
    const int block = n * BLOCKS + (TOGETHER ? i / COLUMNS : 0);
    pixel[s] = Place::of(image, block * (H * W) + line * W + column);
  }
  const uint4* filter = (const uint4*)filters + (item / ROWS * FILTERS + first_row + item % ROWS);
  uint4 held[FILTER_LOADS + PIXEL_LOADS];
  // One of `SHARES` shares of the loads of a step, to a stage or to registers.
  auto load = [&](int step, int stage, int share) {
    const unsigned to = base + stage * STAGE + item * 16;
    const int tap = step % TAPS, begin = PATCH ? tap * BLOCKS + step / TAPS * DEPTH : step * DEPTH;
    const int end = PATCH ? (tap + 1) * BLOCKS : UNITS;
#pragma unroll
    for (int s = share; s < FILTER_LOADS; s += SHARES) {
      const int i = item + s * ITEMS, u = begin + i / ROWS;
      const bool exists = WHOLE || u < end;
      const uint4* from = (const uint4*)filters + (u * FILTERS + first_row + i % ROWS);
      if (ITEMS % ROWS == 0) from = filter + (begin + s * (ITEMS / ROWS)) * FILTERS;
      if (FILTER_UNITS % ITEMS != 0 && i >= FILTER_UNITS) continue;
      if (ASYNC) tvm_edge_copy<(CACHED > 1), 0>(to + s * ITEMS * 16, from, exists);
      else tvm_edge_read<0>(held[s], from, exists);
    }
    const int first = step * DEPTH / BLOCKS;
#pragma unroll
    for (int s = share; s < PIXEL_LOADS; s += SHARES) {
      const int i = item + s * ITEMS, u = step * DEPTH + i / COLUMNS;
      const int tap = TOGETHER ? first : u / BLOCKS;
      const int block = (TOGETHER ? step * DEPTH : u) - tap * BLOCKS;
      const int y = tap / KW, x = tap % KW;
      bool exists = WHOLE || u < UNITS;
      const unsigned across = PACKED ? lines[s] >> (KH + x) : columns[PACKED ? 0 : s] >> x;
      exists = exists && (lines[s] >> y & across & 1);
      const int further = block * (H * W) + y * DH * W + x * DW;
      const uint4* from = Place::at(image, pixel[s], further);
      if (PIXEL_UNITS % ITEMS != 0 && i >= PIXEL_UNITS) continue;
      const unsigned own = to + (FILTER_UNITS + s * ITEMS) * 16;
      if (ASYNC) tvm_edge_copy<(CACHED > 0), ZERO>(own, from, exists);
      else tvm_edge_read<ZERO>(held[FILTER_LOADS + s], from, exists);
    }
  };
  auto commit = [&](int stage) {  // what was loaded before
    if (ASYNC) {
      asm volatile("cp.async.commit_group;" ::: "memory");
      return;
    }
    const unsigned to = base + stage * STAGE + item * 16;
#pragma unroll
    for (int s = 0; s < FILTER_LOADS; s++)
      if (FILTER_UNITS % ITEMS == 0 || item + s * ITEMS < FILTER_UNITS)
        tvm_edge_write(to + s * ITEMS * 16, held[s]);
#pragma unroll
    for (int s = 0; s < PIXEL_LOADS; s++)
      if (PIXEL_UNITS % ITEMS == 0 || item + s * ITEMS < PIXEL_UNITS)
        tvm_edge_write(to + (FILTER_UNITS + s * ITEMS) * 16, held[FILTER_LOADS + s]);
  };
#pragma unroll
  for (int i = 0; i < DOWN * BESIDE * 4; i++) acc[i] = 0;
  if (PATCH) {
    const Patch at(first_column, TOP, LEFT);
    const int block = first_step / TAPS * DEPTH;
#pragma unroll 4
    for (int i = item; i < OWN_BLOCKS * Patch::UNITS; i += ITEMS) {
      const int own = i / Patch::UNITS, line = i / Patch::SPAN % Patch::LINES;
      const int column = i % Patch::SPAN, y = at.top + line, x = at.left + column;
      const bool exists = (unsigned)y < (unsigned)H && (unsigned)x < (unsigned)W &&
                          (WHOLE || block + own < BLOCKS);
      tvm_edge_copy<(CACHED > 0), ZERO>(
          before + own * Patch::BYTES + Patch::place(line, column) * 16,
          (const uint4*)image + (((at.number * BLOCKS + block + own) * H + y) * W + x), exists);
    }
  }
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < STEPS) {
#pragma unroll
      for (int share = 0; share < SHARES; share++) load(first_step + s, s, share);
    }
    commit(s);
  }
  if (!ASYNC && STEPS > 1) load(first_step + 1, 1, 0);
  const unsigned of_filters = ((lane >> 4) * ROWS + down * DOWN * 16 + (lane & 15)) * 16;
  // A lane's two results of a piece are four pixels apart: four lanes then store side by side.
  const int shuffled = (lane & 1) * 4 + ((lane & 7) >> 1);
  const unsigned of_pixels =
      (FILTER_UNITS + ((lane >> 3) & 1) * COLUMNS + beside * BESIDE * 8 + shuffled) * 16;
  // Of a patch: a lane's pixels, of two pieces at a time, and what a step is further on.
  constexpr int PAIRS = PATCH ? (BESIDE + 1) / 2 : 0;
  unsigned of_patch[PAIRS + 1], further = 0;
#pragma unroll
  for (int j = 0; j < PAIRS; j++) {
    const int second = 2 * j + 1 < BESIDE ? lane >> 4 : 0;
    const int own = (beside * BESIDE + 2 * j + second) * 8 + shuffled;
    const int place = Patch::place(own / Patch::COLUMNS_OUT, own % Patch::COLUMNS_OUT);
    of_patch[j] = before + ((lane >> 3) & 1) * Patch::BYTES + place * 16;
  }
  // The next piece of operands is on its way to registers while one is multiplied.
  unsigned a[2][DOWN][4], b[2][BESIDE + 1][2];
  auto fetch = [&](int piece, int stage, int to) {
    const unsigned at = base + stage * STAGE;
    const int k = 2 * (WARPS == 1 ? piece : slice * PIECES + piece);
#pragma unroll
    for (int i = 0; i < DOWN; i++)
      tvm_edge_matrices(a[to][i], at + of_filters + (k * ROWS + i * 16) * 16);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const unsigned from = of_patch[j] + further + k * Patch::BYTES;
      if (2 * j + 1 < BESIDE) tvm_edge_matrices(b[to][2 * j], from);
      else tvm_edge_two_matrices(b[to][2 * j], from);
    }
    if (PATCH) return;
#pragma unroll
    for (int j = 0; j + 1 < BESIDE; j += 2)
      tvm_edge_matrices(b[to][j], at + of_pixels + (k * COLUMNS + j * 8 + (lane >> 4) * 8) * 16);
    if (BESIDE % 2)
      tvm_edge_two_matrices(b[to][BESIDE - 1],
                            at + of_pixels + (k * COLUMNS + (BESIDE - 1) * 8) * 16);
  };
  tvm_edge_wait<ASYNC, STAGES - 2, ITEMS>();
  fetch(0, 0, 0);
  int stage = 0, next = STAGES - 1;
  constexpr int AT_ONCE = PIECES % 2 ? 2 : 1;  // constants index registers
  auto multiply = [&](int step, int turn) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
      const int now = (turn * PIECES + piece) % 2;
      if (ASYNC && piece < SHARES && step + STAGES - 1 < STEPS)
        load(first_step + step + STAGES - 1, next, piece);
      if (piece == PIECES - 1) {
        if (ASYNC || step + 1 < STEPS) commit(next);
        if (!ASYNC && step + STAGES < STEPS) load(first_step + step + STAGES, 0, 0);
        next = next + 1 == STAGES ? 0 : next + 1;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (PATCH && step + 1 < STEPS) {
          const int then = step + 1, tap = then % TAPS;
          further = then / TAPS * DEPTH * Patch::BYTES;
          further += Patch::place(tap / KW * DH, tap % KW * DW) * 16;
        }
        tvm_edge_wait<ASYNC, STAGES - 2, ITEMS>();
      }
      fetch((piece + 1) % PIECES, stage, 1 - now);
      if (LANES == 4) {  // the instruction itself would truncate
#pragma unroll
        for (int j = 0; j < BESIDE; j++)
#pragma unroll
          for (int k = 0; k < 2; k++)
            asm("cvt.rna.tf32.f32 %0, %1;"
                : "=r"(b[now][j][k]) : "f"(__uint_as_float(b[now][j][k])));
      }
#pragma unroll
      for (int k = 0; k < Unit::TIMES; k++)
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
          for (int n = 0; n < BESIDE; n++) {  // there and back: a turn keeps its operand
            const int j = i % 2 ? BESIDE - 1 - n : n;
            Unit::multiply(acc + (i * BESIDE + j) * 4, a[now][i], b[now][j], k);
          }
    }
  };
  if (STEPS > AT_ONCE) {
#pragma unroll 1
    for (int step = 0; step < STEPS; step += AT_ONCE) {
      multiply(step, 0);
      if (AT_ONCE > 1 && step + 1 < STEPS) multiply(step + 1, 1);
    }
  } else {  // a loop of one turn, and operands would be in memory: nvcc unrolls nothing in it
    multiply(0, 0);
    if (STEPS > 1) multiply(1, 1);
  }
  if (WARPS > 1) {  // the first warps add up what the others have of the same results
    constexpr int COUNT = DOWN * BESIDE * 4;
    typename Unit::Sum* sums = (typename Unit::Sum*)memory;
    const int own = (down * ACROSS + beside) * 32 + lane;
    tvm_edge_wait<ASYNC, 0, ITEMS>();
    if (slice > 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) sums[((slice - 1) * COUNT + i) * (SHARE * 32) + own] = acc[i];
    }
    asm volatile("bar.sync 1, %0;" ::"n"(ITEMS) : "memory");
    if (slice == 0) {
#pragma unroll
      for (int other = 0; other < WARPS - 1; other++)
#pragma unroll
        for (int i = 0; i < COUNT; i++) acc[i] += sums[(other * COUNT + i) * (SHARE * 32) + own];
    }
  }
}
#endif
"""
)


def multiply_tile(
    parameters: Sequence[int],
    accumulators: Any,
    image: tuple[Any, tirx.Expr],
    filters: tuple[Any, tirx.Expr],
    memory: Any,
    first: Sequence[tirx.Expr],
) -> None:
    """Write the call that accumulates a tile.

    Parameters
    ----------
    parameters : sequence of int
        Of the template.
    accumulators : buffer
        Registers of a work-item: four for each 16 by 8 piece of its warp.
    image, filters : (buffer, Expr)
        Operands, and where they begin.
    memory : buffer
        Local memory.
    first : sequence of Expr
        The tile's first row, its first column or the number of its patch, and its first step.
    """
    places = [(accumulators, 0), image, filters, (memory, 0)]
    pointers = [T.address_of(each[offset]) for each, offset in places]
    name = f"tvm_edge_tensor_conv<{', '.join(str(int(p)) for p in parameters)}>"
    T.evaluate(cuda_func_call(name, *pointers, *first, source_code=_TILE))
