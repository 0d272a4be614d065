"""Estimated latency of a convolution on a GPU by its configuration, without a measurement.

The estimate is the cycles by which schedules choose, as seconds. It ranks the choices and is no
measured latency. Where a network's convolutions have tuning records, their ratio to the estimates
corrects the rest.
"""

from __future__ import annotations

from math import prod

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.algorithm import (
    as_product,
    block_extents,
    item_cycles,
    winograd_cycles,
)
from tvm_edge.schedules.gpu.cycles import ALUS
from tvm_edge.schedules.gpu.items import Items
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.product_tile import (
    choose_block_tile,
    choose_product_tile,
    estimated_cycles,
    seconds_of,
    streaming_cycles,
)
from tvm_edge.schedules.gpu.tensor_space import tensor_cycles
from tvm_edge.schedules.gpu.tensor_tile import UNIT_BYTES
from tvm_edge.schedules.knobs import read_knobs

__all__ = ["convolution_seconds"]

_BYTES = 4  # of float32

# Shares of the peak: of sub-groups, and of the rules' schedules of an operator as it is.
_SUB_GROUP, _PLAIN = 0.5, 0.1

_CLOCK_GHZ = 1.0  # devices of unknown bandwidth


def convolution_seconds(
    workload: ConvWorkload,
    config: ConvConfig,
    spec: DeviceSpec,
    *,
    stored: int = _BYTES,
    slower: float = 1.0,
) -> float:
    """Estimate the seconds of one convolution.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
        Legal for it; without knobs those that its schedule would choose.
    spec : DeviceSpec
    stored : int
        Bytes of an element in memory, of kernels without tensor cores: 2 of float16.
    slower : float
        Factor of their arithmetic, where it converts what is stored.
    """
    if config.algorithm in ("tensor", "winograd") and config.block:
        return seconds_of(tensor_cycles(workload, config, spec))
    if config.algorithm == "winograd":
        tile = read_knobs(Tile, config.knobs) if config.knobs else None
        return slower * seconds_of(winograd_cycles(workload, config.m, spec, tile))
    if config.algorithm == "direct":
        return seconds_of(_direct_cycles(workload, config, spec, stored, slower))
    if config.algorithm == "window":
        stored = UNIT_BYTES // config.block
    moved = stored * _elements(workload)
    least = 1e-6 * spec.launch_us + moved / (1e9 * max(spec.bandwidth_gbs, 1.0))
    if config.algorithm == "items":
        items = read_knobs(Items, config.knobs) if config.knobs else None
        cycles = slower * item_cycles(workload, config.block, items, spec)
        return max(least, 1e-6 * spec.launch_us + cycles / (1e9 * _clock_ghz(spec)))
    share = _SUB_GROUP if config.algorithm == "subgroup" else _PLAIN
    return max(least, slower * 2e-9 * workload.macs / (_peak_gflops(spec) * share))


def _direct_cycles(
    workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec, stored: int, slower: float
) -> float:
    if config.block:
        extents, line = block_extents(workload, config.block)
        chosen = choose_block_tile(extents, line, spec)
    else:
        extents, window = as_product(workload)
        chosen = choose_product_tile(extents, window, spec)
    tile = read_knobs(Tile, config.knobs) if config.knobs else chosen
    assert tile is not None, "a direct convolution has a tile"
    _, rows, _, reduction = extents
    return max(
        slower * estimated_cycles(tile, extents, spec),
        streaming_cycles(stored * rows * reduction, spec),
    )


def _elements(workload: ConvWorkload) -> int:
    image = workload.batch * workload.channels * workload.height * workload.width
    result = workload.batch * workload.filters * prod(workload.output)
    own = workload.channels // workload.groups * prod(workload.kernel)
    return image + result + workload.filters * own


def _lanes(spec: DeviceSpec) -> int:
    return max(spec.cores, 1) * (spec.alus or ALUS)


def _peak_gflops(spec: DeviceSpec) -> float:
    return spec.peak_gflops or 2 * _lanes(spec) * _CLOCK_GHZ


def _clock_ghz(spec: DeviceSpec) -> float:
    return _peak_gflops(spec) / (2 * _lanes(spec))
