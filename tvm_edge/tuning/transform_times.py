"""Latency of layout transforms: measured on the device, or estimated by its bandwidth.

Transforms are of few kinds (from NCHW into channel blocks, back, and between two sizes of blocks),
and the latency of one depends on the image's size. So each kind is measured at a few sizes of a
network's images, and between them the latency is taken to be linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.native import kernels_on_pool
from tvm_edge.relay_passes.lower.launch_grids import LaunchGrids
from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
from tvm_edge.relay_passes.memory.add_workspace import AddWorkspace
from tvm_edge.runtime.inputs import random_inputs
from tvm_edge.runtime.threads import resolve_threads
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import filled, pack_image, repack_image, unpack_image
from tvm_edge.tuning.kernel_model import kernel_model

__all__ = ["TransformTimes", "estimate_transforms", "measure_transforms"]

Shape = tuple[int, ...]
Kind = tuple[int, int]
Transform = tuple[Kind, Shape]

_SIZES = 4  # of each kind
_SIZES_BUILT = 2  # where a driver or nvcc takes a part of a second to build each
_ROUNDS, _SECONDS = 5, 0.004
_LAUNCH = 2e-6
_LEAST_BANDWIDTH = 10.0  # 10**9 bytes per second
_COPIES = 8  # of a transform in a model that times it: a run has an overhead of its own
_RUNS_IN_FLIGHT = 60


@dataclass(frozen=True)
class TransformTimes:
    """Seconds of transforms by their kind and the image's bytes.

    Attributes
    ----------
    known : dict
        By layouts before and after (0 for NCHW) pairs of bytes and seconds, in the order of bytes.
    measured : bool
    """

    known: Mapping[Kind, list[tuple[float, float]]]
    measured: bool

    def seconds(self, shape: Shape, before: int, after: int) -> float:
        """Return the seconds of one image in NCHW; 0 where it is a view."""
        if is_view(shape, before, after):
            return 0.0
        points = self.known[before, after]
        nbytes = 4.0 * prod(shape)
        largest, most = points[-1]
        if nbytes > largest:
            return most * nbytes / largest
        sizes, times = zip(*points, strict=True)
        return float(np.interp(nbytes, sizes, times))


def is_view(shape: Shape, before: int, after: int) -> bool:
    """Return true if a single pixel's channels keep their order."""
    whole = all(not block or shape[1] % block == 0 for block in (before, after))
    return shape[2:] == (1, 1) and whole


def estimate_transforms(kinds: Iterable[Kind], spec: DeviceSpec) -> TransformTimes:
    """Estimate by the bandwidth: mostly of a cache, which has four times the memory's."""
    nbytes = 2.0**30
    launch = _LAUNCH if spec.has_cpu_cores else 1e-6 * spec.launch_us
    # A GPU's driver may not say it: then what phones have at least.
    bandwidth = spec.bandwidth_gbs or (1e-3 if spec.has_cpu_cores else _LEAST_BANDWIDTH)
    seconds = launch + 2 * nbytes / (4e9 * bandwidth)
    return TransformTimes({kind: [(0.0, launch), (nbytes, seconds)] for kind in kinds}, False)


def measure_transforms(
    wanted: Mapping[Kind, Iterable[Shape]], resolved: ResolvedTarget, check: Callable[[], None]
) -> TransformTimes:
    """Time transforms on a device of this machine.

    Parameters
    ----------
    wanted : mapping
        By layouts before and after the shapes of images in NCHW.
    resolved : ResolvedTarget
        A CPU is used with all its cores.
    check : callable
        Called between two kernels; what it raises ends the measurement.
    """
    measure, most = (_on_cpu, _SIZES) if resolved.host is None else (_on_device, _SIZES_BUILT)
    chosen = {kind: _spread(kind, shapes, most) for kind, shapes in wanted.items()}
    timed = measure([(kind, s) for kind, shapes in chosen.items() for s in shapes], resolved)
    known: dict[Kind, list[tuple[float, float]]] = {}
    for kind, shapes in chosen.items():
        points = []
        for shape in shapes:
            check()
            points.append((4.0 * prod(shape), next(timed)))
        # Noise apart, a larger image takes no less.
        times = np.maximum.accumulate([seconds for _, seconds in points])
        known[kind] = [(size, float(t)) for (size, _), t in zip(points, times, strict=True)]
    return TransformTimes({kind: points for kind, points in known.items() if points}, True)


def _on_cpu(wanted: Sequence[Transform], resolved: ResolvedTarget) -> Iterator[float]:
    """Yield seconds of each transform, one after another."""
    functions, arguments = {}, []
    for number, (kind, shape) in enumerate(wanted):
        func, shapes = _function(shape, *kind)
        scheduled = cpu.schedule(func, resolved.spec).func
        functions[f"transform{number}"] = scheduled.with_attr("global_symbol", f"transform{number}")
        arguments.append(shapes)
    library = tvm.compile(tvm.IRModule(functions), target=resolved.target) if functions else None
    resolve_threads(resolved.spec.cores).use()
    for number, shapes in enumerate(arguments):
        assert library is not None
        with kernels_on_pool():
            transform = library[f"transform{number}"]
        yield _timed(transform, shapes)


def _on_device(wanted: Sequence[Transform], resolved: ResolvedTarget) -> Iterator[float]:
    """Yield seconds of each transform on a GPU: of models that have it several times."""
    for kind, shape in wanted:
        func, (given, written) = _function(shape, *kind)
        builder = relax.BlockBuilder()
        image = relax.Var("image", relax.TensorType(given, "float32"))
        with builder.function("main", [image]):
            with builder.dataflow():
                name = builder.add_func(func.without_attr("global_symbol"), "transform")
                made = relax.TensorType(written, "float32")
                results = [
                    builder.emit(relax.call_tir(name, [image], made)) for _ in range(_COPIES)
                ]
                outputs = builder.emit_output(relax.Tuple(results))
            builder.emit_func_output(outputs)
        with resolved.target:
            scheduled, _ = schedule_kernels(builder.finalize(), resolved)
            model = kernel_model(_with_workspace(scheduled), resolved)
        inputs = random_inputs(model.inputs)
        one = model.seconds_in_a_row(inputs, 1)
        runs = max(1, min(_RUNS_IN_FLIGHT, round(_SECONDS / one)))
        times = [model.seconds_in_a_row(inputs, runs) for _ in range(_ROUNDS)]
        yield median(times) / _COPIES


def _spread(kind: Kind, shapes: Iterable[Shape], most: int) -> list[Shape]:
    """Choose up to `most` shapes of different sizes, the least and the largest among them."""
    by_size = {prod(shape): shape for shape in sorted(shapes) if not is_view(shape, *kind)}
    sizes = sorted(by_size)
    places = np.linspace(0, len(sizes) - 1, min(most, len(sizes))).round().astype(int)
    return [by_size[sizes[place]] for place in places]


def _function(shape: Shape, before: int, after: int) -> tuple[tirx.PrimFunc, list[Shape]]:
    """Return a transform, and the shapes of its argument and its result."""
    batch, channels, *size = shape
    given = shape
    if before:
        given = (batch, filled(channels, before) // before, *size, before)
    image = te.placeholder(given, "float32", "image")
    if not before:
        result = pack_image(image, after)
    elif not after:
        result = unpack_image(image, channels)
    else:
        result = repack_image(image, channels, after)
    written = tuple(int(dim) for dim in result.shape)
    return te.create_prim_func([image, result]), [given, written]


def _timed(function: Any, shapes: list[Shape]) -> float:
    image, result = (tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes)
    function(image, result)
    found = []
    for _ in range(_ROUNDS):
        runs, start = 0, perf_counter()
        while not runs or perf_counter() - start < _SECONDS:
            function(image, result)
            runs += 1
        found.append((perf_counter() - start) / runs)
    return median(found)


def _with_workspace(scheduled: tvm.IRModule) -> tvm.IRModule:
    """Scheduled kernels as they are launched, with the workspaces that they asked for."""
    # Passes, by decorators that type checkers cannot see through.
    passes: list[Any] = [LaunchGrids(), AddWorkspace()]
    for each in passes:
        scheduled = each(scheduled)
    return scheduled
