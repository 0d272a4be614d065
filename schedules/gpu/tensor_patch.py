"""CUDA C of a patch of pixels, the columns of a tile on tensor cores.

The columns are ``LINES_OUT`` by ``PATCH`` pixels of the result. The image under them is copied to
shared memory once, all channels of a work-group, and read there at each tap: of a window of 3x3 a
seventh to a fifth of the copies of pixels in order. Many channels have no room there.
"""

from __future__ import annotations

from tvm_edge.schedules.gpu.tensor_conv import TensorConv

__all__ = ["PATCH", "patch_units"]

PATCH = r"""
// Neighbouring pixels of the result are neighbours at every tap.
template <int COLUMNS, int PATCH, int KH, int KW, int DH, int DW, int OH, int OW>
struct tvm_edge_patch {
  static constexpr int COLUMNS_OUT = PATCH ? PATCH : 1, LINES_OUT = COLUMNS / COLUMNS_OUT;
  static constexpr int ACROSS = (OW + COLUMNS_OUT - 1) / COLUMNS_OUT;
  static constexpr int ALL = ACROSS * ((OH + LINES_OUT - 1) / LINES_OUT);
  static constexpr int LINES = LINES_OUT + (KH - 1) * DH;
  static constexpr int SPAN = COLUMNS_OUT + (KW - 1) * DW, UNITS = LINES * SPAN;
  static constexpr int pitch() {  // eight pixels are in different banks, across lines too
    return COLUMNS_OUT % 8 ? SPAN + (8 - (KW - 1) * DW % 8) % 8 : SPAN;
  }
  static constexpr int PITCH = pitch(), BYTES = LINES * PITCH * 16;
  int number, top, left;  // the image, and the first line and column in it
  __device__ __forceinline__ tvm_edge_patch(int patch, int above, int before)
      : number(patch / ALL),
        top(patch % ALL / ACROSS * LINES_OUT - above),
        left(patch % ACROSS * COLUMNS_OUT - before) {}
  static __device__ __forceinline__ int place(int line, int column) {
    return line * PITCH + column;
  }
};
"""


def patch_units(conv: TensorConv, lines: int, columns: int) -> tuple[int, int]:
    """Count the units of a block of the image under a patch, and their places in local memory."""
    high = lines + (conv.kernel_h - 1) * conv.dilation_h
    beside = (conv.kernel_w - 1) * conv.dilation_w
    skipped = -beside % 8 if columns % 8 else 0
    return high * (columns + beside), high * (columns + beside + skipped)
