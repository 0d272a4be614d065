"""Latency estimates of a convolution's configurations on a CPU, where nobody measured them."""

from __future__ import annotations

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


def convolution_seconds(workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec) -> float:
    """Seconds of one convolution, with all cores.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
        Legal for it; without knobs those that its schedule would choose.
    spec : DeviceSpec
    """
    peak = 1e9 * max(spec.peak_gflops, 1e-3)
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
        return _tile_seconds(
            direct_tile(workload, block, input_block(workload, block)), config, spec
        )
    tile = product_tile(workload, block, config.m)
    elements = tile.outer * tile.columns * (tile.steps + tile.blocks * block)
    return _tile_seconds(tile, config, spec) + 2 * _TRANSFORM * elements / peak


def _tile_seconds(size: Tile, config: ConvConfig, spec: DeviceSpec) -> float:
    knobs = read_knobs(Knobs, config.knobs) if config.knobs else best_knobs(size, spec)
    return seconds_of(size, knobs, spec)
