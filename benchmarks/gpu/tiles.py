"""Tiles that the estimate chooses for a convolution, beside others drawn at random.

For each convolution the tile that :mod:`tvm_edge.schedules.gpu.product_tile` chooses, and
``--tiles`` others, drawn at random among those that it expects to take less than 2.5 times as long.
Each kernel's result is compared with ONNX Runtime's before it is timed, by the device's timer
around 30 launches. One row per layer: the chosen tile's time, the best one's, and their ratio.
``--json FILE`` writes all times and estimates, which is what the constants are fitted to.

``--target opencl`` is for other GPUs, and ``--small`` are small layers to try the benchmark.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.gpu.workloads import PRODUCTS, SEEN, UNSEEN, Layer, Products, layer_model

_LAUNCHES, _REPEATS = 30, 3

_SMALL = (Layer(64, 7, 48, 3), Layer(16, 12, 24, 1, 2), Products(16, 24, 12, 16))


def _source(layer: Layer | Products, target: str) -> Any:
    """The layer's kernel, taken apart."""
    from tvm import te, tirx

    if isinstance(layer, Products):
        from tvm_edge.schedules.gpu.tiled import Source
        from tvm_edge.schedules.gpu.winograd import products

        given = [te.placeholder(shape, "float32", n) for n, shape in layer.shapes.items()]
        return Source.of(te.create_prim_func([*given, products(*given)], "int64"))

    from tvm_edge.compiler.compilation import begin
    from tvm_edge.compiler.options import Options
    from tvm_edge.compiler.pipeline import PIPELINE
    from tvm_edge.schedules.gpu.tiled import Source

    begun = begin(layer_model(layer), target, Options(fallback="none"))
    fused = PIPELINE.part(until="ConcatAtOffsets").run(begun).module
    kernels = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    found = next((source for f in kernels if (source := Source.of(f))), None)
    if found is None:
        raise SystemExit(f"{layer} is no contraction to the rule")
    return found


def _expected(layer: Layer | Products, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Result by ONNX Runtime; of products, which it has no operator for, by NumPy in float64."""
    if isinstance(layer, Products):
        filters = inputs["u"].astype("float64").transpose(0, 2, 1)
        return filters @ inputs["v"].astype("float64")
    (result,) = onnxruntime_function(layer_model(layer))(inputs).values()
    return result


def _build(layer: Layer | Products, tiles: list[Any], target: str, folder: str) -> list[str]:
    """Libraries of a layer's kernel, one for each tile."""
    import tvm

    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering import opencl_intrinsics
    from tvm_edge.lowering.cuda_compiler import cuda_compiler

    resolved, source, paths = resolve_target(target), _source(layer, target), []
    if target == "opencl":
        opencl_intrinsics.register()
    for tile in tiles:
        func = source.kernel(tile, resolved.spec).with_attr("global_symbol", "layer")
        arch = str(resolved.target.attrs["arch"]) if target == "cuda" else ""
        with cuda_compiler(arch) if arch else nullcontext(), resolved.target:
            library = tvm.compile(func, target=resolved.target)
        name = "_".join(map(str, (*astuple(layer), *astuple(tile))))
        paths.append(str(Path(folder, f"{name}.so")))
        library.export_library(paths[-1])
    return paths


def _time(layer: Layer | Products, tiles: list[Any], paths: list[str], target: str) -> list[float]:
    """Microseconds of each kernel; infinite where its result is wrong."""
    import tvm

    generator = np.random.default_rng(0)
    inputs = {
        name: generator.standard_normal(shape).astype("float32")
        for name, shape in layer.shapes.items()
    }
    expected = _expected(layer, inputs)
    device, times = tvm.device(target, 0), []
    for tile, path in zip(tiles, paths, strict=True):
        arrays = [a.reshape(1, -1, 1, 1) if a.ndim == 1 else a for a in inputs.values()]
        arrays.append(np.full_like(expected, np.nan, dtype="float32"))
        if tile.parts > 1:
            arrays.append(np.full(tile.parts * expected.size, np.nan, "float32"))
        tensors = [tvm.runtime.tensor(array, device) for array in arrays]
        library = tvm.runtime.load_module(path)
        library["layer"](*tensors)
        error = relative_error(tensors[len(inputs)].numpy(), expected)
        if not error <= 1e-4:
            print(f"wrong: {layer} {tile}, {error:.1e}")
            times.append(float("inf"))
            continue
        timer = library.time_evaluator("layer", device, number=_LAUNCHES, repeat=_REPEATS)
        times.append(timer(*tensors).median * 1e6)
    return times


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    from tvm_edge.hardware import resolve_target
    from tvm_edge.schedules.gpu.product_tile import estimated_cycles, possible_tiles

    parser = Parser("gpu_tiles", __doc__)
    parser.shared(target=Among("cuda", ("cuda", "opencl")), jobs=2, json=None)
    parser.add_argument("--tiles", type=int, default=14)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    spec = resolve_target(options.target).spec
    chooser = random.Random(0)
    plans = []
    for layer in _SMALL if options.small else (*SEEN, *UNSEEN, *PRODUCTS):
        source = _source(layer, options.target)
        cost = {
            t: estimated_cycles(t, source.extents, spec)
            for t in possible_tiles(source.extents, source.window, spec)
        }
        if not cost:
            raise SystemExit(f"{spec.name} has no local memory for tiles")
        chosen = min(cost, key=lambda tile: cost[tile])
        near = [t for t in cost if t != chosen and cost[t] < 2.5 * cost[chosen]]
        others = chooser.sample(near, min(options.tiles, len(near)))
        plans.append((layer, [chosen, *others], cost))
    rows, ratios = [], {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            futures = [
                pool.submit(_build, layer, tiles, options.target, folder)
                for layer, tiles, _ in plans
            ]
            built = [future.result() for future in futures]
        print(json.dumps(describe_machine()))
        print("| layer | chosen, µs | best, µs | chosen / best | chosen tile | best tile |")
        print("|---|---|---|---|---|---|")
        for (layer, tiles, cost), paths in zip(plans, built, strict=True):
            times = _time(layer, tiles, paths, options.target)
            best = min(range(len(tiles)), key=times.__getitem__)
            ratio = times[0] / times[best]
            ratios[layer in SEEN].append(ratio)
            rows += [
                [str(layer), astuple(t), us, cost[t]] for t, us in zip(tiles, times, strict=True)
            ]
            print(
                f"| {layer} | {times[0]:.1f} | {times[best]:.1f} | {ratio:.2f} "
                f"| {astuple(tiles[0])} | {astuple(tiles[best])} |",
                flush=True,
            )
    for seen, found in ((seen, found) for seen, found in ratios.items() if found):
        name = "layers it was fitted to" if seen else "other layers"
        print(f"- {name}: geometric mean **{geometric_mean(found):.3f}**, worst {max(found):.2f}")
    save_json(options.json, rows)
