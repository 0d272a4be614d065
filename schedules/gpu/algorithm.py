"""Which algorithm computes a convolution on a GPU."""

from __future__ import annotations

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.gpu.product_tile import (
    choose_product_tile,
    estimated_cycles,
    streaming_cycles,
)
from tvm_edge.schedules.winograd import winograd_applies

__all__ = ["choose_winograd"]

# Of float32.
_BYTES = 4


def choose_winograd(workload: ConvWorkload, spec: DeviceSpec) -> int:
    """Outputs of a Winograd tile along a line, 2 or 4; 0 where another algorithm is faster.

    By the estimates of :mod:`~tvm_edge.schedules.gpu.product_tile`: fewer multiplications against
    two more kernels, the way of the transformed images through memory, and larger filters.
    """
    if spec.local_memory_kind != "dedicated" or not winograd_applies(workload):
        return 0
    batch, channels, filters = workload.batch, workload.channels, workload.filters
    lines, columns = workload.output
    image = _BYTES * batch * channels * workload.height * workload.width
    result = _BYTES * batch * filters * lines * columns
    best, least = 0, _product_cycles((batch, filters, lines * columns, 9 * channels), 9, spec)
    for m in (2, 4):
        tiles = batch * -(-lines // m) * -(-columns // m)
        frequencies = (m + 2) ** 2
        cycles = _product_cycles((frequencies, filters, tiles, channels), 1, spec)
        cycles += streaming_cycles(image + _BYTES * frequencies * channels * tiles, spec)
        cycles += streaming_cycles(result + _BYTES * frequencies * filters * tiles, spec)
        if cycles < least:
            best, least = m, cycles
    return best


def _product_cycles(extents: tuple[int, int, int, int], window: int, spec: DeviceSpec) -> float:
    """Those of a tiled product, which reads its filters once; infinite where it has no tile."""
    tile = choose_product_tile(extents, window, spec)
    if tile is None:
        return float("inf")
    batch, rows, _, terms = extents
    filters = batch * rows * terms if window == 1 else rows * terms
    return max(estimated_cycles(tile, extents, spec), streaming_cycles(_BYTES * filters, spec))
