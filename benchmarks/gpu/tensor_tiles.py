"""Tiles of convolutions on tensor cores of a part of a GPU: the estimate's choice and the others.

For each convolution the first ``--tiles`` by the estimate of each kind: pixels in order, patches of
pixels, and in float16 the products of Winograd's algorithm. Each is a network of up to 24 copies
with filters of their own, compiled by all processes of ``--jobs`` before anything is timed. Results
are compared with the convolution in float64 (2e-3 of the largest one); what is wrong does not
count. Times are µs of a convolution. ``--json FILE`` writes all of them beside their estimates,
which is what the constants of :mod:`tvm_edge.schedules.gpu.tensor_tile` are fitted to.

A slice is some of the multiprocessors, see ``benchmarks/gpu/mps.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, product
from math import nan
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json
from benchmarks.common.processes import Job, require_child
from benchmarks.gpu.mps import share_of, sliced
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

CONVOLUTIONS = (
    # channels, size, filters, window, stride: of vgg19, resnet50_v1, yolov3, densenet121, googlenet
    (64, 224, 64, 3, 1),
    (64, 112, 128, 3, 1),
    (128, 112, 128, 3, 1),
    (128, 56, 256, 3, 1),
    (256, 56, 256, 3, 1),
    (512, 28, 512, 3, 1),
    (64, 56, 64, 3, 1),
    (128, 28, 128, 3, 1),
    (256, 14, 256, 3, 1),
    (32, 208, 64, 3, 1),
    (64, 104, 128, 3, 1),
    (64, 208, 128, 3, 2),
    (128, 56, 32, 3, 1),
    (128, 28, 32, 3, 1),
    (128, 14, 32, 3, 1),
    (32, 28, 96, 5, 1),
    # of resnet50_v1
    (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1),
    (128, 28, 512, 1, 1),
    (512, 28, 128, 1, 1),
    (256, 14, 1024, 1, 1),
    (1024, 14, 256, 1, 1),
    (512, 7, 2048, 1, 1),
    (2048, 7, 512, 1, 1),
    (512, 7, 512, 3, 1),
)
_KINDS = ("in order", "patches", "Winograd")
_ERROR, _SECONDS = 2e-3, 0.05


def _workload(number: int, dtype: str) -> ConvWorkload:
    channels, size, filters, window, stride = CONVOLUTIONS[number]
    around, kernel, strides = (window // 2,) * 4, (window, window), (stride, stride)
    return ConvWorkload(1, channels, size, size, filters, kernel, strides, around, (1, 1), 1, dtype)


def first_of_each_kind(
    workload: ConvWorkload, spec: DeviceSpec, count: int
) -> dict[str, list[ConvConfig]]:
    """Return the first configurations by the estimate of each kind that there is."""
    from tvm_edge.schedules.gpu.tensor_space import tensor_configs
    from tvm_edge.schedules.gpu.tensor_tile import TensorTile
    from tvm_edge.schedules.knobs import read_knobs

    found: dict[str, dict[Any, ConvConfig]] = {}
    for config in tensor_configs(workload, spec):
        tile = read_knobs(TensorTile, config.knobs)
        kind = "Winograd" if config.algorithm == "winograd" else _KINDS[tile.patch > 0]
        # Ways through the L1 cache follow the one that the estimate takes.
        found.setdefault(kind, {}).setdefault(replace(tile, cached=0), config)
    return {kind: list(islice(own.values(), count)) for kind, own in found.items()}


def _compile(number: str, dtype: str, count: str, folder: Path) -> dict[str, Any]:
    """A job: compile the tiles of a convolution for this slice."""
    from tvm_edge.hardware import resolve_target
    from tvm_edge.schedules.gpu.tensor_space import tensor_cycles
    from tvm_edge.tuning.candidates import export_candidate
    from tvm_edge.tuning.conv_problem import make_problem

    workload, own = _workload(int(number), dtype), folder / number
    own.mkdir(exist_ok=True)
    problem, spec = make_problem(workload), resolve_target("cuda").spec
    tiles = []
    for kind, configs in first_of_each_kind(workload, spec, int(count)).items():
        for config in configs:
            path = own / f"{len(tiles)}.tvme"
            export_candidate(workload, config, problem, "cuda", None, path)
            cycles = tensor_cycles(workload, config, spec)
            tiles.append({"kind": kind, "knobs": config.knobs, "cycles": cycles, "file": path.name})
    (own / "tiles.json").write_text(json.dumps(tiles))
    return {}


def _time(folder: Path) -> dict[str, Any]:
    """A job: compare the results of all these tiles, and time them."""
    import tvm

    import tvm_edge
    from tvm_edge.runtime.candidates import Operands, model_candidate

    found = []
    for number in range(len(CONVOLUTIONS)):
        own = folder / str(number)
        problem = Operands.load(own / "model.npz")
        tiles = json.loads((own / "tiles.json").read_text())
        for tile in tiles:
            model = tvm_edge.load(own / tile.pop("file"))
            candidate = model_candidate(model, problem.image, problem.expected)
            tile["error"] = candidate.error()
            tile["right"] = bool(tile["error"] <= _ERROR)
            tile["us"] = 1e6 * candidate.seconds(_SECONDS)
        found.append(tiles)
    return {"tiles": found, "cores": tvm.cuda().multi_processor_count}


JOBS: dict[str, Job] = {"compile": _compile, "time": _time}


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import tvm

    whole, found = tvm.cuda().multi_processor_count, dict[str, Any]()
    with sliced():
        for cores, dtype in product(options.slice, options.precision):
            share, own = share_of(cores, whole), folder / f"{cores}-{dtype}"
            own.mkdir()

            def compile_one(
                number: int, dtype: str = dtype, own: Path = own, share: dict[str, str] = share
            ) -> None:
                require_child(__name__, "compile", number, dtype, options.tiles, own, **share)

            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(compile_one, range(len(CONVOLUTIONS))))
            result = require_child(__name__, "time", own, **share)
            if result["cores"] != cores:
                raise SystemExit(f"MPS gave {result['cores']} multiprocessors; ask for those")
            for conv, tiles in zip(CONVOLUTIONS, result["tiles"], strict=True):
                found[f"{cores} {dtype} {conv}"] = tiles
            save_json(options.json, found)
    return found


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of the table: the fastest of each kind, and the estimate's choice."""
    named = ("multiprocessors, type, convolution", *_KINDS, "chosen", "chosen / fastest")
    lines = [
        f"| {' | '.join(named)} |",
        "|---" * (len(_KINDS) + 3) + "|",
    ]
    losses: dict[str, list[float]] = {}
    for key, tiles in found.items():
        right = [tile for tile in tiles if tile["right"]]
        if not right:
            lines.append(f"| {key} |{' wrong |' * (len(_KINDS) + 2)}")
            continue
        chosen = min(right, key=lambda tile: tile["cycles"])["us"]
        loss = chosen / min(tile["us"] for tile in right)
        losses.setdefault(" multiprocessors, ".join(key.split()[:2]), []).append(loss)
        of_kinds = [
            min((tile["us"] for tile in right if tile["kind"] == kind), default=nan)
            for kind in _KINDS
        ]
        words = [f"{us:,.1f}" if us == us else "–" for us in (*of_kinds, chosen)]
        lines.append(f"| {key} | {' | '.join(words)} | **{loss:.2f}** |")
    lines.append("")
    lines += [
        f"- {what}, chosen / fastest: geometric mean "
        f"**{geometric_mean(own):.3f}**, largest {max(own):.2f}"
        for what, own in losses.items()
    ]
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("tensor_tiles", __doc__)
    parser.shared(jobs=8, json=None)
    parser.add_argument("--slice", nargs="+", type=int, default=[8], help="multiprocessors")
    parser.add_argument(
        "--precision", nargs="+", choices=("float16", "int8"), default=["float16", "int8"]
    )
    parser.add_argument("--tiles", type=int, default=3, help="of each kind")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(options, Path(folder))
    print(describe_machine())
    print("\n".join(table(found)))
