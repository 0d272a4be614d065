"""CUDA C of implicit GEMM on tensor cores, and the calls of it.

An operand lies in units of 16 bytes: eight float16, which are neighbouring channels of a pixel or
of a filter. ``cp.async`` brings units to shared memory while those of earlier steps are multiplied.
The eight rows of a matrix that ``ldmatrix`` reads are eight neighbouring units there, 128 bytes of
all banks, so that nothing needs to be swizzled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

__all__ = ["add_floats", "load_vector", "multiply_tile", "store_vector"]

_TILE = r"""
#ifndef TVM_EDGE_TENSOR_CORES
#define TVM_EDGE_TENSOR_CORES
template <bool L1>
__device__ __forceinline__ void tvm_edge_copy(unsigned target, const void* source, bool exists) {
  const int bytes = exists ? 16 : 0;  // the rest is filled with zeros
  if (L1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(bytes) : "memory");
  }
}
__device__ __forceinline__ void tvm_edge_matrices(unsigned* r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void tvm_edge_two_matrices(unsigned* r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void tvm_edge_multiply(float* c, const unsigned* a, const unsigned* b) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// All but `LEFT` copies of a work-item have arrived, and all of its work-group's: only the warps
// of this kernel meet, as it may be one of several in a launch.
template <int LEFT, int ITEMS>
__device__ __forceinline__ void tvm_edge_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
  asm volatile("bar.sync 1, %0;" ::"n"(ITEMS) : "memory");
}
// A tile of filters (rows) by pixels (columns): see TensorTile and TensorConv for the parameters.
template <int ROWS, int COLUMNS, int DOWN, int BESIDE, int WARPS, int DEPTH, int STAGES,
          int CACHED, int STEPS, bool WHOLE, int BATCH, int BLOCKS, int H, int W, int FILTERS,
          int KH, int KW, int SH, int SW, int TOP, int LEFT, int DH, int DW, int OH, int OW>
__device__ __forceinline__ void tvm_edge_tensor_conv(
    float* acc, const void* image, const void* filters, unsigned char* memory, int first_row,
    int first_column, int first_step) {
  constexpr int ACROSS = COLUMNS / (BESIDE * 8), SHARE = ROWS / (DOWN * 16) * ACROSS;
  constexpr int ITEMS = SHARE * WARPS * 32, UNITS = BLOCKS * KH * KW;
  constexpr int FILTER_UNITS = DEPTH * ROWS, PIXEL_UNITS = DEPTH * COLUMNS;
  constexpr int FILTER_LOADS = (FILTER_UNITS + ITEMS - 1) / ITEMS;
  constexpr int PIXEL_LOADS = (PIXEL_UNITS + ITEMS - 1) / ITEMS;
  constexpr int STAGE = (FILTER_UNITS + PIXEL_UNITS) * 16;
  constexpr bool POINTWISE = KH == 1 && KW == 1 && TOP == 0 && LEFT == 0 &&
                             (OH - 1) * SH < H && (OW - 1) * SW < W;
  const unsigned base = (unsigned)__cvta_generic_to_shared(memory);
  const int item = threadIdx.x, lane = item & 31, warp = item >> 5;
  const int slice = warp / SHARE, down = warp % SHARE / ACROSS, beside = warp % ACROSS;

  const uint4* pixel[PIXEL_LOADS];
  int line[PIXEL_LOADS], column[PIXEL_LOADS];
#pragma unroll
  for (int s = 0; s < PIXEL_LOADS; s++) {
    const int i = item + s * ITEMS, p = first_column + i % COLUMNS;
    const bool exists = p < BATCH * OH * OW && i < PIXEL_UNITS;
    const int n = BATCH == 1 ? 0 : p / (OH * OW), q = BATCH == 1 ? p : p % (OH * OW);
    line[s] = exists ? q / OW * SH - TOP : -(1 << 20);
    column[s] = q % OW * SW - LEFT;
    pixel[s] = (const uint4*)image;
    if (exists) pixel[s] += n * BLOCKS * H * W + line[s] * W + column[s];
  }
  auto load = [&](int step, int stage) {
    unsigned to = base + stage * STAGE;
#pragma unroll
    for (int s = 0; s < FILTER_LOADS; s++) {
      const int i = item + s * ITEMS, u = step * DEPTH + i / ROWS;
      const bool exists = WHOLE || u < UNITS;
      const uint4* from = (const uint4*)filters + (exists ? u * FILTERS + first_row + i % ROWS : 0);
      if (FILTER_UNITS % ITEMS == 0 || i < FILTER_UNITS)
        tvm_edge_copy<(CACHED > 1)>(to + i * 16, from, exists);
    }
    to += FILTER_UNITS * 16;
#pragma unroll
    for (int s = 0; s < PIXEL_LOADS; s++) {
      const int i = item + s * ITEMS, u = step * DEPTH + i / COLUMNS;
      bool exists = WHOLE || u < UNITS;
      const uint4* from;
      if (POINTWISE) {
        from = pixel[s] + u * (H * W);
        exists = exists && line[s] >= 0;
      } else {
        // A step of whole blocks has one tap, the same for all work-items.
        const bool together = BLOCKS % DEPTH == 0;
        const int tap = (together ? step * DEPTH : u) / BLOCKS, block = u - tap * BLOCKS;
        const int y = tap / KW * DH, x = tap % KW * DW;
        exists = exists && (unsigned)(line[s] + y) < (unsigned)H &&
                 (unsigned)(column[s] + x) < (unsigned)W;
        from = pixel[s] + (block * (H * W) + y * W + x);
      }
      if (PIXEL_UNITS % ITEMS == 0 || i < PIXEL_UNITS)
        tvm_edge_copy<(CACHED > 0)>(to + i * 16, exists ? from : (const uint4*)image, exists);
    }
  };
#pragma unroll
  for (int i = 0; i < DOWN * BESIDE * 4; i++) acc[i] = 0;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < STEPS) load(first_step + s, s);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  const unsigned of_filters = ((lane >> 4) * ROWS + down * DOWN * 16 + (lane & 15)) * 16;
  // A lane's two results of a piece are four pixels apart: four lanes then store side by side.
  const int shuffled = (lane & 1) * 4 + ((lane & 7) >> 1);
  const unsigned of_pixels =
      (FILTER_UNITS + ((lane >> 3) & 1) * COLUMNS + beside * BESIDE * 8 + shuffled) * 16;
  // The next piece of operands is on its way to registers while one is multiplied.
  constexpr int PIECES = DEPTH / (2 * WARPS);
  unsigned a[2][DOWN][4], b[2][BESIDE + 1][2];
  auto fetch = [&](int piece, int stage, int to) {
    const unsigned at = base + stage * STAGE;
    const int k = 2 * (WARPS == 1 ? piece : slice * PIECES + piece);
#pragma unroll
    for (int i = 0; i < DOWN; i++)
      tvm_edge_matrices(a[to][i], at + of_filters + (k * ROWS + i * 16) * 16);
#pragma unroll
    for (int j = 0; j + 1 < BESIDE; j += 2)
      tvm_edge_matrices(b[to][j], at + of_pixels + (k * COLUMNS + j * 8 + (lane >> 4) * 8) * 16);
    if (BESIDE % 2)
      tvm_edge_two_matrices(b[to][BESIDE - 1],
                            at + of_pixels + (k * COLUMNS + (BESIDE - 1) * 8) * 16);
  };
  tvm_edge_wait<STAGES - 2, ITEMS>();
  fetch(0, 0, 0);
  int stage = 0, next = STAGES - 1;
  constexpr int TOGETHER = PIECES % 2 ? 2 : 1;  // constants index registers
#pragma unroll 1
  for (int first = 0; first < STEPS; first += TOGETHER) {
#pragma unroll
    for (int step = first; step < first + TOGETHER; step++) {
      if (step > first && step >= STEPS) break;
#pragma unroll
      for (int piece = 0; piece < PIECES; piece++) {
        const int now = ((step - first) * PIECES + piece) % 2;
        if (piece == 0) {
          if (step + STAGES - 1 < STEPS) load(first_step + step + STAGES - 1, next);
          asm volatile("cp.async.commit_group;" ::: "memory");
          next = next + 1 == STAGES ? 0 : next + 1;
        }
        if (piece == PIECES - 1) {
          stage = stage + 1 == STAGES ? 0 : stage + 1;
          tvm_edge_wait<STAGES - 2, ITEMS>();
        }
        fetch((piece + 1) % PIECES, stage, 1 - now);
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
          for (int j = 0; j < BESIDE; j++)
            tvm_edge_multiply(acc + (i * BESIDE + j) * 4, a[now][i], b[now][j]);
      }
    }
  }
  if (WARPS > 1) {  // the first warps add up what the others have of the same results
    constexpr int COUNT = DOWN * BESIDE * 4;
    float* sums = (float*)memory;
    const int own = (down * ACROSS + beside) * 32 + lane;
    tvm_edge_wait<0, ITEMS>();
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

_VECTORS = {2: "unsigned", 4: "uint2", 8: "uint4"}
"""Types as long as so many float16."""


def multiply_tile(
    parameters: Sequence[int],
    accumulators: Any,
    image: tuple[Any, int],
    filters: Any,
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
    image : (buffer, int)
        And the offset of its first pixel.
    filters, memory : buffer
        The other operand, and local memory.
    first : sequence of Expr
        The tile's first row and column, and its first step.
    """
    places = [(accumulators, 0), image, (filters, 0), (memory, 0)]
    pointers = [T.address_of(each[offset]) for each, offset in places]
    name = f"tvm_edge_tensor_conv<{', '.join(str(int(p)) for p in parameters)}>"
    T.evaluate(cuda_func_call(name, *pointers, *first, source_code=_TILE))


def load_vector(registers: Any, source: Any, offset: tirx.Expr, count: int) -> None:
    """Load `count` neighbours from `offset` on to `registers` of their type."""
    halves = str(source.dtype) == "float16"
    kind, width = ("half", count) if halves else ("float", min(count, 4))
    vector = _VECTORS[width] if halves else f"float{width}"
    name = f"tvm_edge_load_{kind}s_{count}"
    code = f"""
__device__ __forceinline__ void {name}({kind}* registers, const {kind}* source) {{
#pragma unroll
  for (int i = 0; i < {count}; i += {width}) {{
    const {vector} loaded = *(const {vector}*)(source + i);
#pragma unroll
    for (int k = 0; k < {width}; k++) registers[i + k] = ((const {kind}*)&loaded)[k];
  }}
}}
"""
    pointers = T.address_of(registers[0]), T.address_of(source[offset])
    T.evaluate(cuda_func_call(name, *pointers, source_code=code))


def store_vector(target: Any, offset: tirx.Expr, values: Sequence[tirx.Expr]) -> None:
    """Store float32 values side by side, rounded where `target` is of float16."""
    count = len(values)
    names = [f"v{i}" for i in range(count)]
    given = ", ".join(f"float {name}" for name in names)
    if str(target.dtype) == "float16":
        vector, name = _VECTORS[count], f"tvm_edge_store_halves_{count}"
        pairs = [
            f"  stored.pairs[{i // 2}] = __floats2half2_rn(v{i}, v{i + 1});\n"
            for i in range(0, count, 2)
        ]
        code = (
            f"__device__ __forceinline__ void {name}(half* target, {given}) {{\n"
            f"  union Stored {{ half2 pairs[{count // 2}]; {vector} vector; "
            "__device__ Stored() {} } stored;\n"
            f"{''.join(pairs)}  *({vector}*)target = stored.vector;\n}}\n"
        )
    else:
        name, width = f"tvm_edge_store_floats_{count}", min(count, 4)
        stores = [
            f"  ((float{width}*)target)[{i // width}] = "
            f"make_float{width}({', '.join(names[i : i + width])});\n"
            for i in range(0, count, width)
        ]
        code = (
            f"__device__ __forceinline__ void {name}(float* target, {given}) {{\n"
            f"{''.join(stores)}}}\n"
        )
    T.evaluate(cuda_func_call(name, T.address_of(target[offset]), *values, source_code=code))


def add_floats(registers: Any, source: Any, offset: tirx.Expr) -> None:
    """Add eight float32 from `offset` on to `registers`."""
    code = """
__device__ __forceinline__ void tvm_edge_add_floats(float* registers, const float* source) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float4 loaded = ((const float4*)source)[i];
    registers[4 * i] += loaded.x;
    registers[4 * i + 1] += loaded.y;
    registers[4 * i + 2] += loaded.z;
    registers[4 * i + 3] += loaded.w;
  }
}
"""
    pointers = T.address_of(registers[0]), T.address_of(source[offset])
    T.evaluate(cuda_func_call("tvm_edge_add_floats", *pointers, source_code=code))
