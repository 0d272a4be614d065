"""Networks side by side in one artifact, batches, and merging by work-items.

``models``
    Two networks with weights and inputs of their own in one artifact (EMDL'21, Figure 11): what a
    run of both takes launch after launch, as ``auto`` merges, with all merged that can be; and both
    at the same time, each by itself (``concurrent``).
``temporal``
    One network with one to five pictures at a time (Figure 3).
``flat``
    Members without barriers on ranges of work-items (Figure 9): rounded up to the device's wave, as
    in the paper (``wave``), not rounded (``unrounded``), and by work-groups (``fused0``).

Results are compared with ONNX Runtime's before anything is timed, and the JSON file is written
after each row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.fusion.timing import time_row
from benchmarks.fusion.workloads import BARRIER_FREE, operator_model

_PAIRS = (("mobilenet_v2", "mobilenet_v2"), ("mobilenet_v2", "squeezenet1_0"))
_BATCHED = ("mobilenet_v2", "squeezenet1_0", "resnet50_v2")
_BATCHES = range(1, 6)
_COPIES = (2, 4, 8)
_TOLERANCE = 1e-4  # of the largest value

Variant = dict[str, Any]
"""``models``: by name a network and how to build it, or a network and its operator; ``fusion``: as
``parallel_fusion=``; ``flat``: work-items that ranges are rounded up to, or ``"wave"``."""


# ------------------------------------------------------------------ what the child processes do


def _compile(variants: str, target: str, row: str, folder: Path) -> dict[str, Any]:
    """Compile each variant of a row, and what failed of which."""
    found: dict[str, Any] = {}
    for name, variant in json.loads(variants).items():
        try:
            found[name] = _compile_one(variant, target, folder / f"{row}.{name}")
        except Exception as error:  # of any layer, CUDA's and LLVM's included: it is reported
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
    return found


def _compile_one(variant: Variant, target: str, path: Path) -> dict[str, Any]:
    """Compile, compare the results with ONNX Runtime's, write the artifact and its inputs."""
    import tvm_edge

    models = {name: _built(*given) for name, given in variant["models"].items()}
    inputs, expected = _reference(models)
    with _flat(variant.get("flat"), target) as launches:
        built = tvm_edge.compile(
            models if len(models) > 1 else next(iter(models.values())),
            target,
            fallback="none",
            parallel_fusion=variant["fusion"],
        )
    results = built.run(inputs)
    worst = 0.0
    for name, value in expected.items():
        worst = max(worst, relative_error(results[name], value))
    if not worst <= _TOLERANCE:
        raise ValueError(f"a result is wrong by {worst:.1e} of the largest value")
    built.export(path.with_name(path.name + ".tvme"))
    np.savez(path.with_name(path.name + ".npz"), **inputs)
    taken = [group for group in built.report.fusion_groups if group["taken"]]
    return {
        "taken": len(taken),
        "kernels": len(built.report.kernels),
        "flat": len(launches),
        "error": worst,
    }


def _built(network: str, how: Any) -> Any:
    """A network, or an operator of it."""
    from tvm_edge import zoo

    return operator_model(network, how) if isinstance(how, str) else zoo.build(network, **how)


def _reference(models: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs, other ones for each model, and ONNX Runtime's results, as users call them."""
    chance = np.random.default_rng(1)
    inputs: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    for name, model in models.items():
        prefix = f"{name}/" if len(models) > 1 else ""
        session = onnxruntime_session(model)
        own = {
            value.name: chance.standard_normal(value.shape).astype("float32")
            for value in session.get_inputs()
        }
        results = [output.name for output in session.get_outputs()]
        inputs |= {prefix + tensor: value for tensor, value in own.items()}
        found = zip(results, session.run(None, own), strict=True)
        expected |= {prefix + tensor: value for tensor, value in found}
    return inputs, expected


@contextmanager
def _flat(wave: Any, target: str) -> Iterator[list[int]]:
    """Have kernels merged by work-items; yields a list with an item for each launch that was."""
    launches: list[int] = []
    if wave is None:
        yield launches
        return
    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering import merge_launches
    from tvm_edge.lowering.flat_launches import FLAT, flat_launch
    from tvm_edge.lowering.parallel_members import compose
    from tvm_edge.relay_passes.fuse import parallel_fusion as fusion

    rounded = max(resolve_target(target).spec.wave, 1) if wave == "wave" else wave

    def marked(*args: Any, **options: Any) -> Any:
        return compose(*args, **options).with_attr(FLAT, rounded)

    def counted(members: Any, size: int) -> Any:
        launches.append(len(members))
        return flat_launch(members, size)

    with (
        mock.patch.object(fusion, "compose", marked),
        mock.patch.object(merge_launches, "flat_launch", counted),
    ):
        yield launches


def _time(names: str, target: str, row: str, rounds: str, folder: Path) -> dict[str, Any]:
    return time_row(row, json.loads(names), target, int(rounds), folder)


JOBS: dict[str, Job] = {"compile": _compile, "time": _time}


# ----------------------------------------------------------------------------------- the parent


def _rows(part: str) -> dict[str, dict[str, Variant]]:
    """Variants of each row, by title."""
    if part == "temporal":
        return {
            network: {
                f"batch{count}": {"models": {"": (network, {"batch": count})}, "fusion": False}
                for count in _BATCHES
            }
            for network in _BATCHED
        }
    if part == "models":
        return {" + ".join(pair): _of_pair(pair) for pair in _PAIRS}
    return {
        f"{count} × {'/'.join(operator)}": _of_copies(operator, count)
        for operator in BARRIER_FREE
        for count in _COPIES
    }


def _of_pair(networks: tuple[str, ...]) -> dict[str, Variant]:
    models = {f"m{i}": (network, {"seed": i}) for i, network in enumerate(networks)}
    fusions = {"off": False, "auto": "auto", "fused0": True}
    found: dict[str, Variant] = {
        name: {"models": models, "fusion": fusion} for name, fusion in fusions.items()
    }
    for place, (name, model) in enumerate(models.items()):
        found[f"only{place}"] = {"models": {name: model}, "fusion": False}
    return found


def _of_copies(operator: tuple[str, str], count: int) -> dict[str, Variant]:
    models = {f"m{i}": operator for i in range(count)}
    return {
        "off": {"models": models, "fusion": False},
        "fused0": {"models": models, "fusion": True},
        "wave": {"models": models, "fusion": True, "flat": "wave"},
        "unrounded": {"models": models, "fusion": True, "flat": 1},
    }


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each title, with the times of all variants by how they were launched."""
    every = list(_rows(options.part).items())
    for number, (title, variants) in enumerate(every):
        if number not in options.rows:
            continue
        built = run_child(__name__, "compile", json.dumps(variants), options.target, number, folder)
        row: dict[str, Any] = {"title": title, "built": built, "us": {}}
        names = [name for name in variants if "failed" not in built.get(name, built)]
        if failed := {name: made for name, made in built.items() if name not in names}:
            print(title, failed, flush=True)
        given = (json.dumps(names), options.target, number, options.rounds)
        found = run_child(__name__, "time", *given, folder)
        if "failed" in found:
            print(title, found["failed"], flush=True)
        else:
            row |= found
            if row["not timed"]:
                print(title, row["not timed"], flush=True)
            for line in _lines(row):
                print(line, flush=True)
        yield row


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Speed-up of each variant over the first, of batches by picture."""
    for how, times in row["us"].items():
        us = {name: median(own) for name, own in times.items()}
        first = next(iter(us))
        cells = []
        for name, value in us.items():
            pictures = int(name.removeprefix("batch")) if name.startswith("batch") else 1
            cells.append(f"{name} {value:.1f} µs ({us[first] * pictures / value:.2f}×)")
        yield f"| {row['title']} | {how} | {', '.join(cells)} |"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("parallel_models", __doc__)
    parser.add_argument("--part", choices=["models", "temporal", "flat"], default="models")
    parser.shared(target=Among("cuda", ("cuda", "opencl")), rows=None, rounds=3, json=None)
    options = parser.parse_args(arguments)
    count = len(_rows(options.part))
    options.rows = chosen_numbers(parser, "--rows", options.rows, count)
    print(json.dumps(describe_machine()))
    with tempfile.TemporaryDirectory() as name:
        rows = []
        for row in measure(options, Path(name)):
            rows.append(row)
            # After every row: a run that is cut off has measured something.
            save_json(options.json, rows)
