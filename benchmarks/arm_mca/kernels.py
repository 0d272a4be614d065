"""Assembly of convolutions for a core, and which loop has which share of the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm

from benchmarks.arm_mca.assembly import Code, Loop
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import input_block
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import choose_config, direct_tile, product_tile
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, Tile, best_knobs
from tvm_edge.schedules.cpu.float16_partial_sums import cut_loops
from tvm_edge.schedules.cpu.float16_runs import LONGEST, run_length
from tvm_edge.schedules.cpu.space_int8 import tile_of
from tvm_edge.tuning.candidates import convolution_function

__all__ = ["Kernel", "assembly_of", "dense_kernel", "target_of"]

_COPIED = 4
"""Instructions that copy a vector of an image into its padded place, with their loops'."""


def target_of(core: str) -> ResolvedTarget:
    """Return the target of four such cores."""
    return resolve_target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core, "num-cores": 4}
    )


def assembly_of(workload: ConvWorkload, config: ConvConfig, resolved: ResolvedTarget) -> str:
    """Compile a convolution with bias and activation, in a configuration."""
    func, _ = convolution_function(workload, config, resolved.spec)
    func = cpu.schedule(func, resolved.spec).func
    module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    cpu_pipeline.register()
    with resolved.target as target:
        built = tvm.tirx.build(module, target=target, pipeline=cpu_pipeline.CPU)
    return str(built.inspect_source("asm"))


@dataclass(frozen=True)
class Kernel:
    """A dense or grouped convolution for a core, with the tile that its schedule chooses."""

    workload: ConvWorkload
    config: ConvConfig
    resolved: ResolvedTarget
    size: Tile
    knobs: Knobs

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what the inner loops depend on; kernels of one key have the same."""
        w = self.workload
        return (
            self.config,
            replace(self.knobs, order="lines", padding="whole"),
            tuple(count for _, count in self._tiles()),
            w.kernel,
            w.strides,
            w.dilation,
            w.groups > 1,
            w.channels <= 4,
            self.size.reach is not None,
        )

    @property
    def _vectors(self) -> int:
        return self.knobs.blocks * self.size.vectors(self.resolved.spec)

    def _tiles(self) -> Iterator[tuple[float, int]]:
        """Yield the shares of whole and incomplete tiles, each with its accumulators."""
        lines, columns = self.size.lines, self.size.columns
        if self.knobs.flat:
            lines, columns = 1, lines * columns
        for own_columns, wide in _parts(columns, self.knobs.columns):
            for own_lines, tall in _parts(lines, self.knobs.lines):
                share = own_columns * own_lines / (columns * lines)
                yield share, wide * tall * self._vectors

    def _trips(self) -> list[int]:
        """Return the iterations of the loops over channel blocks and windows, outermost first.

        Those of float16 are cut where its sums end.
        """
        w, inside = self.workload, max(self.config.block, 1)
        outer = [w.channels // w.groups // inside, *w.kernel]
        trips = [extent for extent in outer if extent > 1]
        if w.dtype != "float16":
            return trips
        levels = cut_loops(trips, (run_length(self.resolved.spec), LONGEST), inside)
        parts = [part for level in levels for part in level]
        for place, part in parts:
            trips[place] //= part
        return [trip for trip in (*trips, *(part for _, part in reversed(parts))) if trip > 1]

    def assembly(self) -> str:
        """Compile it."""
        return assembly_of(self.workload, self.config, self.resolved)

    def loops(self, code: Code) -> list[tuple[float, Loop]]:
        """Return the inner loop of each kind of tile, with its share of the multiply-adds.

        LLVM may leave a shorter copy of a loop for an odd number of steps: the longer one counts.
        """
        found = []
        for share, accumulators in self._tiles():
            known = [one for one in code.inner if one.macs % accumulators == 0]
            own = [one for one in known if one.accumulators == accumulators and one.is_product]
            # Of a short reduction nothing is a loop but the tiles, in registers by other names.
            found += [(share, max(some, key=_macs)) for some in (own or known,) if some]
        return found

    def instructions(self, code: Code, loop: Loop) -> float:
        """Return the instructions for a multiply-add of a whole tile, copies for padding included.

        Of Winograd's algorithm these are the products alone.
        """
        # Of matrices two instructions a step add to each accumulator.
        macs = self.size.steps * loop.accumulators * (2 if self.size.pairs else 1)
        total = len(loop.body) * macs / loop.macs
        w = self.workload
        extents = self._trips()
        inside = loop
        around = code.around(loop)
        levels = next((i for i, one in enumerate(around) if _stores_results(one)), len(around) - 1)
        for level, one in enumerate(around[: levels + 1]):
            entries = 1 if level == levels else prod(extents[: max(levels - level, 1)])
            total += (len(one.body) - len(inside.body)) * entries
            inside = one
        copied = 0.0
        if self.size.padded and self.config.algorithm == "direct":
            lanes = self.resolved.spec.lanes(self.size.element)
            copied = _COPIED * self.size.image_bytes / 16 / (w.macs / lanes)
        return total / macs + copied


def dense_kernel(workload: ConvWorkload, core: str) -> Kernel | None:
    """Return the kernel that a convolution has on a core without tuning; ``None`` for a plain one.

    Depthwise convolutions have no dense tile.
    """
    resolved = target_of(core)
    config = choose_config(workload, resolved.spec)
    if workload.depthwise or not config.block:
        return None
    if workload.dtype == "float16" and config.block % resolved.spec.lanes(2):
        return None  # too few channels: it is added up in float32
    if workload.is_bytes:
        size = tile_of(workload, resolved.spec)
    elif config.algorithm == "winograd":
        size = product_tile(workload, config.block, config.m)
    else:
        size = direct_tile(workload, config.block, input_block(workload, config.block))
    return Kernel(workload, config, resolved, size, best_knobs(size, resolved.spec))


def _macs(loop: Loop) -> int:
    return loop.macs


def _parts(length: int, tile: int) -> Iterator[tuple[int, int]]:
    """Yield elements in whole tiles and the rest, each with the size of its tile."""
    full, rest = divmod(length, tile)
    if full:
        yield full * tile, tile
    if rest:
        yield rest, rest


def _stores_results(loop: Loop) -> bool:
    return any(one.stores and one.bits == 128 and not one.spills for one in loop.body)
