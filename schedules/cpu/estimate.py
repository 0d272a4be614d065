"""Latency estimates of a convolution's configurations on a CPU, where nobody measured them."""

from __future__ import annotations

from dataclasses import replace

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import filled, input_block
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import direct_tile, product_tile
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, Tile, best_knobs, seconds_of
from tvm_edge.schedules.knobs import read_knobs

__all__ = ["convolution_seconds"]

# Shares of the peak: NCHW, and windows over single channels, which read as much as they multiply.
_PLAIN, _WINDOW = 0.55, 0.2

_TRANSFORM = 24  # multiply-adds of the transforms for an element of an image


def convolution_seconds(
    workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec, *, widened: bool = False
) -> float:
    """Seconds of one convolution, with all cores.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
        Legal for it; without knobs those that its schedule would choose.
    spec : DeviceSpec
    widened : bool
        Whether image and filters are stored as float16, and widened to float32.
    """
    peak = 1e9 * max(spec.peak_gflops, 1e-3)
    if widened and (config.algorithm == "plain" or workload.depthwise):
        # A vector of the image is widened once for all taps.
        taps = workload.kernel[0] * workload.kernel[1]
        return (1 + 1 / taps) * convolution_seconds(workload, config, spec)
    if config.algorithm == "plain":
        return 2 * workload.macs / (peak * (_WINDOW / 2 if workload.depthwise else _PLAIN))
    block = config.block
    if workload.depthwise:
        return (
            2
            * workload.macs
            * filled(workload.filters, block)
            / workload.filters
            / (peak * _WINDOW * min(1.0, block / spec.lanes()))
        )
    if config.algorithm == "direct":
        tile = direct_tile(workload, block, input_block(workload, block))
        return _tile_seconds(_as_stored(tile) if widened else tile, config, spec)
    tile = product_tile(workload, block, config.m)
    if widened:  # the transformed image is float32
        tile = replace(tile, filter_bytes=tile.filter_bytes // 2, widened=True)
    elements = tile.outer * tile.columns * (tile.steps + tile.blocks * block)
    return _tile_seconds(tile, config, spec) + 2 * _TRANSFORM * elements / peak


def _as_stored(size: Tile) -> Tile:
    """Return the sizes of a convolution of float16, whose image is widened as others are padded."""
    image, filters = size.image_bytes // 2, size.filter_bytes // 2
    return replace(size, image_bytes=image, filter_bytes=filters, padded=True, widened=True)


def _tile_seconds(size: Tile, config: ConvConfig, spec: DeviceSpec) -> float:
    knobs = read_knobs(Knobs, config.knobs) if config.knobs else best_knobs(size, spec)
    return seconds_of(size, knobs, spec)
