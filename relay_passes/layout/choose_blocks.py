"""Choose the convolutions of a graph that are worth a blocked layout.

Convolutions that hand channel blocks to each other stand or fall together. The gain of all of them
has to pay for packing and unpacking the images where blocks begin and end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import tvm
from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import bindings_of, static_shape, typical_shape
from tvm_edge.relay_passes.ir.workloads import FLOATS, conv_workload, transposed_conv
from tvm_edge.relay_passes.place.label_operators import operands
from tvm_edge.relay_passes.precision.stored_arithmetic import arithmetic_of
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import blocked_config, choose_config
from tvm_edge.schedules.layouts import image_block
from tvm_edge.schedules.pairs import multiplies_pairs

__all__ = ["choose_blocked", "multiplied"]

# Shares of the peak that kernels reach: plain, blocked, and with Winograd's algorithm.
_PLAIN, _DIRECT, _WINOGRAD = 0.55, 0.85, 1.6
# Those of depthwise convolutions, and from 25 taps on, where loads and stores matter less; plain
# ones waste the lanes beyond the end of a line, blocked ones those that only fill a block up.
_PLAIN_WINDOW, _WINDOW = 0.28, 0.55
_PLAIN_LARGE_WINDOW, _LARGE_WINDOW, _LARGE = 0.36, 0.48, 25
# What is left of a plain one's where a line is less than a vector (240 5x5 14²: 19 % of the peak).
_SHORT_LINE = 0.65
_LAUNCH = 2e-6  # seconds of a parallel kernel more
# Share of an unpacking that is left of it at the end of a convolution's kernel.
_AT_THE_END = 0.25


def choose_blocked(
    func: relax.Function,
    mod: tvm.IRModule,
    spec: DeviceSpec,
    configs: Mapping[ConvWorkload, ConvConfig],
    *,
    float16: bool = False,
) -> dict[relax.Call, ConvConfig]:
    """Choose the convolutions to compute on blocks, and how.

    Parameters
    ----------
    func : relax.Function
    mod : tvm.IRModule
        Has the kernels that `func` calls already.
    spec : DeviceSpec
        Its peak and bandwidth weigh convolutions against transforms.
    configs : mapping of ConvWorkload to ConvConfig
        Measured choices; these convolutions are not weighed.
    float16 : bool
        Whether products of float16 are multiplied in float16.
    """
    chosen: dict[relax.Call, ConvConfig] = {}
    group = _Groups()
    gain: dict[relax.Var, float] = defaultdict(float)
    reads: list[tuple[relax.Var, relax.Expr]] = []  # member of a group, what it takes as blocks
    others: list[relax.Expr] = [func.body.body]
    windows: set[relax.Var] = set()  # results whose kernel can unpack them
    for binding in bindings_of(func):
        value, var = binding.value, binding.var
        found = _convolution(value, spec, configs, float16)
        if found is not None:
            chosen[value] = found.config
            gain[var] = found.gain
            group.add(var)
            if _unpacks(found):
                windows.add(var)
            if image_block(found.workload, found.config.block, spec) > 1:
                reads.append((var, value.args[0]))
                if value.args[0] in group:
                    group.join(var, value.args[0])
            continue
        members = [arg for arg in operands(value) if arg in group]
        if members and _follows(value, mod):
            group.add(var)
            for member in members:
                group.join(var, member)
            if len(members) == 1 and members[0] in windows:
                windows.add(var)
            continue
        others.append(value)
    cost: dict[relax.Var, float] = defaultdict(float)
    for source, owner in {(source, group.of(var)) for var, source in reads}:
        if source not in group:
            cost[owner] += _transform(source, spec)
    for source in {arg for value in others for arg in relax.analysis.free_vars(value)}:
        if source in group:
            cost[group.of(source)] += _transform(source, spec, at_the_end=source in windows)
    total: dict[relax.Var, float] = defaultdict(float)
    for var, seconds in gain.items():
        total[group.of(var)] += seconds
    return {
        binding.value: chosen[binding.value]
        for block in func.body.blocks
        for binding in block.bindings
        if binding.value in chosen and total[group.of(binding.var)] > cost[group.of(binding.var)]
    }


@dataclass(frozen=True)
class _Convolution:
    """A convolution that could be on blocks, and the seconds that these save it."""

    workload: ConvWorkload
    config: ConvConfig
    gain: float


def _convolution(
    value: relax.Expr,
    spec: DeviceSpec,
    configs: Mapping[ConvWorkload, ConvConfig],
    float16: bool,
) -> _Convolution | None:
    """Return how a convolution would be done on blocks, ``None`` where it would not."""
    transposed = transposed_conv(value)
    if transposed is not None:
        workload = multiplied(transposed[0].workload, transposed[1], float16)
        own = blocked_config(workload, spec)
        # TVM's loops go through the zeros between pixels.
        return None if own is None else _Convolution(workload, own, float("inf"))
    found = conv_workload(value, FLOATS, open_too=True)
    if found is None:
        return None
    # Measured is what a kernel of fixed lengths takes.
    fixed = static_shape(value.args[0].ty) is not None
    measured = fixed and found[0] in configs
    workload = multiplied(*found, float16)
    config = configs[found[0]] if measured else choose_config(workload, spec)
    if not fixed and config.algorithm == "plain":
        config = blocked_config(workload, spec) or config
    if config.algorithm == "plain":
        return None
    # Plain images whose lengths only the run tells have no kernels in vectors.
    certain = measured or not fixed
    gain = float("inf") if certain else _gain(workload, config, spec)
    return _Convolution(workload, config, gain)


def multiplied(workload: ConvWorkload, weights: np.ndarray, float16: bool) -> ConvWorkload:
    """Return a workload in the type that it is multiplied in.

    `float16` says whether products of float16 are multiplied in that.
    """
    halves = float16 and weights.dtype == np.float16
    return replace(workload, dtype="float16") if halves else workload


def _follows(value: relax.Expr, mod: tvm.IRModule) -> bool:
    """Return whether an operator takes blocks where its operands have them."""
    if isinstance(value, relax.TupleGetItem) or of_call(value).blocks is not None:
        return True
    return bool(arithmetic_of(value, mod))


def _gain(workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec) -> float:
    """Seconds that blocks save."""
    seconds = 2e-9 * workload.macs / max(spec.peak_gflops, 1e-3)
    if workload.depthwise:
        plain, blocked = _PLAIN_WINDOW, _WINDOW
        if prod(workload.kernel) >= _LARGE:
            plain, blocked = _PLAIN_LARGE_WINDOW, _LARGE_WINDOW
        columns, channels = workload.output[1], workload.channels
        if prod(workload.kernel) >= _LARGE and columns < spec.lanes():
            plain *= _SHORT_LINE
        plain *= columns / filled(columns, spec.lanes())
        blocked *= channels / filled(channels, config.block)
        return seconds * (1 / plain - 1 / blocked)
    speed = _DIRECT * (_WINOGRAD if config.algorithm == "winograd" else 1)
    if multiplies_pairs(workload, spec):
        speed *= 2
    return seconds * (1 / _PLAIN - 1 / speed)


def _unpacks(found: _Convolution) -> bool:
    """Return whether the kernel of a convolution that is weighed unpacks its result."""
    workload = found.workload
    whole = workload.filters % found.config.block == 0
    return workload.depthwise and whole and workload.dtype == "float32"


def _transform(image: relax.Expr, spec: DeviceSpec, *, at_the_end: bool = False) -> float:
    """Seconds to pack or unpack an image, which mostly is in a cache."""
    shape = typical_shape(image.ty) or ()
    size = 4.0
    for dim in shape:
        size *= dim
    seconds = 2 * size / (4e9 * max(spec.bandwidth_gbs, 1e-3))
    return _AT_THE_END * seconds if at_the_end else _LAUNCH + seconds


class _Groups:
    """Disjoint sets of variables."""

    def __init__(self) -> None:
        self._parent: dict[relax.Var, relax.Var] = {}

    def __contains__(self, var: object) -> bool:
        return var in self._parent

    def add(self, var: relax.Var) -> None:
        self._parent[var] = var

    def of(self, var: relax.Var) -> relax.Var:
        while self._parent[var] is not var:
            self._parent[var] = var = self._parent[self._parent[var]]
        return var

    def join(self, a: relax.Var, b: relax.Var) -> None:
        self._parent[self.of(a)] = self.of(b)
