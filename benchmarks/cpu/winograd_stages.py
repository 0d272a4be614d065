"""Winograd's algorithm on a CPU: its stages fused over a line of tiles, and one after another.

One row per 3x3 convolution of ``--convolutions CxSxF``: C channels of SxS pixels to F, float32,
batch 1. Both are the best of their kind by the estimate, and ``chosen`` says which one the schedule
takes. Results are compared with the convolution in float64 (1e-4 of the largest one); what is wrong
is not timed. Filters are in no cache. Times are µs: medians of ``--rounds`` in which the two take
turns, in one process, with ``--threads``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import nan
from statistics import geometric_mean, median
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json

CONVOLUTIONS = (
    # of vgg19, resnet50_v1, yolov3 and googlenet
    *((64, 224, 64), (64, 112, 128), (128, 112, 128), (128, 56, 256), (256, 56, 256)),
    *((256, 28, 512), (64, 56, 64), (128, 28, 128), (32, 208, 64), (64, 104, 128), (64, 56, 192)),
    # of no network
    *((24, 120, 40), (96, 40, 96), (40, 320, 24), (48, 96, 48)),
)
_ERROR, _SECONDS = 1e-4, 0.1


def _sizes(text: str) -> tuple[int, int, int]:
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not channels, size and filters: 64x224x64")
    channels, size, filters = map(int, parts)
    return channels, size, filters


def _row(sizes: tuple[int, int, int], target: Any, rounds: int) -> dict[str, Any]:
    from tvm_edge.hardware import resolve_target
    from tvm_edge.schedules.conv_config import ConvConfig
    from tvm_edge.schedules.conv_workload import ConvWorkload
    from tvm_edge.schedules.cpu.algorithm import choose_config, product_tile
    from tvm_edge.schedules.cpu.blocked_knobs import candidates
    from tvm_edge.schedules.knobs import knobs_as_text
    from tvm_edge.tuning.candidates import build_candidate
    from tvm_edge.tuning.conv_problem import make_problem

    channels, size, filters = sizes
    workload = ConvWorkload(
        1, channels, size, size, filters, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1
    )
    spec = resolve_target(target).spec
    config = choose_config(workload, spec)
    if config.algorithm != "winograd":
        return {"chosen": config.algorithm}
    knobs = candidates(product_tile(workload, config.block, config.m), spec)
    found: dict[str, Any] = {"chosen": "fused" if knobs[0].order == "fused" else "stages"}
    problem, shared, timed = make_problem(workload), dict[Any, Any](), {}
    for kind, fused in (("stages", False), ("fused", True)):
        own = next((one for one in knobs if (one.order == "fused") == fused), None)
        if own is None:
            continue
        tried = ConvConfig("winograd", config.block, config.m, knobs_as_text(own))
        candidate = build_candidate(workload, tried, problem, target, shared)
        found[f"{kind} error"] = candidate.error()
        if found[f"{kind} error"] <= _ERROR:
            timed[kind] = candidate
    times: dict[str, list[float]] = {kind: [] for kind in timed}
    for _ in range(rounds):
        for kind, candidate in timed.items():
            times[kind].append(1e6 * candidate.seconds(_SECONDS))
    return found | {kind: median(own) for kind, own in times.items()}


def _lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| convolution | chosen | stages | fused | stages / fused |", "|---" * 5 + "|"]
    chosen: list[float] = []
    for name, row in rows.items():
        us = [row.get(kind, nan) for kind in ("stages", "fused")]
        words = [f"{each:,.0f}" if each == each else "–" for each in us]
        ratio = us[0] / us[1]
        if row["chosen"] == "fused" and ratio == ratio:
            chosen.append(ratio)
        lines.append(f"| {name} | {row['chosen']} | {' | '.join(words)} | **{ratio:.2f}** |")
    if chosen:
        mean = f"geometric mean **{geometric_mean(chosen):.2f}**, least {min(chosen):.2f}"
        lines += ["", f"- where fused stages are chosen: {mean}"]
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("cpu_winograd", __doc__)
    parser.shared(rounds=5, threads=2, json=None)
    parser.add_argument("--convolutions", nargs="+", type=_sizes, default=CONVOLUTIONS)
    parser.add_argument("--target", default="llvm", help="a target of this machine, or JSON of one")
    options = parser.parse_args(arguments)
    from tvm_edge.runtime.threads import resolve_threads

    resolve_threads(options.threads).use()
    target = json.loads(options.target) if options.target.startswith("{") else options.target
    rows: dict[str, dict[str, Any]] = {}
    for sizes in options.convolutions:
        name = "{}x{}² to {}".format(*sizes)
        rows[name] = _row(sizes, target, options.rounds)
        print(f"{name}: {rows[name]}", flush=True)
        save_json(options.json, rows)
    print(json.dumps(describe_machine()))
    print("\n".join(_lines(rows)))
