"""What it takes to write an image in another layout: measured on this CPU, or by its bandwidth.

Transforms are of few kinds (from NCHW into blocks, back, and between two sizes of blocks), and what
one takes is a matter of the image's size. So each kind is measured at a few sizes of a network's
images, and between them the time is taken to be linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.runtime.threads import configure_pool
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import filled, pack_image, repack_image, unpack_image

__all__ = ["TransformTimes", "estimate_transforms", "measure_transforms"]

Shape = tuple[int, ...]
Kind = tuple[int, int]

_SIZES = 4  # of each kind
_ROUNDS, _SECONDS = 5, 0.004
_LAUNCH = 2e-6


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
        """Of one image in NCHW; 0 where it is a view."""
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
    """Whether a single pixel's channels lie as they lay."""
    whole = all(not block or shape[1] % block == 0 for block in (before, after))
    return shape[2:] == (1, 1) and whole


def estimate_transforms(kinds: Iterable[Kind], spec: DeviceSpec) -> TransformTimes:
    """By the bandwidth: an image is mostly in a cache, which has four times the memory's."""
    nbytes = 2.0**30
    seconds = _LAUNCH + 2 * nbytes / (4e9 * max(spec.bandwidth_gbs, 1e-3))
    return TransformTimes({kind: [(0.0, _LAUNCH), (nbytes, seconds)] for kind in kinds}, False)


def measure_transforms(
    wanted: Mapping[Kind, Iterable[Shape]], resolved: ResolvedTarget, check: Callable[[], None]
) -> TransformTimes:
    """Time transforms on this machine's CPU with all its cores.

    Parameters
    ----------
    wanted : mapping
        By layouts before and after the shapes of images in NCHW.
    resolved : ResolvedTarget
    check : callable
        Called between two kernels; what it raises ends the measurement.
    """
    chosen = {kind: _spread(kind, shapes) for kind, shapes in wanted.items()}
    functions, arguments = {}, {}
    for kind, shapes in chosen.items():
        for number, shape in enumerate(shapes):
            name = f"from_{kind[0]}_to_{kind[1]}_{number}"
            func, arguments[name] = _function(shape, *kind)
            scheduled = cpu.schedule(func, resolved.spec).func
            functions[name] = scheduled.with_attr("global_symbol", name)
    library = tvm.compile(tvm.IRModule(functions), target=resolved.target) if functions else None
    configure_pool(resolved.spec.cores)
    known: dict[Kind, list[tuple[float, float]]] = {}
    for kind, shapes in chosen.items():
        points = []
        for number, shape in enumerate(shapes):
            check()
            name = f"from_{kind[0]}_to_{kind[1]}_{number}"
            assert library is not None
            points.append((4.0 * prod(shape), _timed(library[name], arguments[name])))
        # Noise apart, a larger image takes no less.
        times = np.maximum.accumulate([seconds for _, seconds in points])
        known[kind] = [(size, float(t)) for (size, _), t in zip(points, times, strict=True)]
    return TransformTimes({kind: points for kind, points in known.items() if points}, True)


def _spread(kind: Kind, shapes: Iterable[Shape]) -> list[Shape]:
    """A few shapes of different sizes, the least and the largest among them."""
    by_size = {prod(shape): shape for shape in sorted(shapes) if not is_view(shape, *kind)}
    sizes = sorted(by_size)
    places = np.linspace(0, len(sizes) - 1, min(_SIZES, len(sizes))).round().astype(int)
    return [by_size[sizes[place]] for place in places]


def _function(shape: Shape, before: int, after: int) -> tuple[tirx.PrimFunc, list[Shape]]:
    """A transform, and the shapes of what it reads and writes."""
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
