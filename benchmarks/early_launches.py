"""Kernels that are launched while the one in front ends: ``python -m benchmarks.early_launches``.

Networks on CUDA with launches that wait for the kernel in front (``wait``), as tvm-edge builds them
(``early``), and with ``launch_dependents`` at the start of each kernel as well (``at once``); and
with a launch taken to cost what ``--launch-us`` says, from which schedules and fusion are chosen.
Of compute capability 9.0 and newer; of older ones all are the same.

Results have to be the same to the bit where the kernels are, in 20 runs on inputs of their own, and
within 1e-4 of the largest value otherwise. Times are of TVM's virtual machine by the device's
timer, without tuning records, in processes for each network that take the builds in turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.processes import Job, is_child, run_child, serve
from benchmarks.vision_timing import machine_us

_MODULE = "benchmarks.early_launches"
_NETWORKS = ("mobilenet_v2", "squeezenet1_0", "resnet50_v1", "googlenet")
_CALLS, _TURNS, _INPUTS = 50, 4, 20
_TOLERANCE = 1e-4


def _compile(name: str, build: str, folder: Path) -> dict[str, Any]:
    import tvm
    from tvm import tirx
    from tvm.script import tirx as T

    import tvm_edge
    from tvm_edge.hardware.kinds import cuda
    from tvm_edge.lowering import cuda_pipeline
    from tvm_edge.lowering.dependent_launches import DependentLaunches

    early: Any = DependentLaunches()

    @tirx.transform.prim_func_pass(opt_level=0, name="AtOnce")
    class AtOnce:
        def transform_function(self, func: Any, _mod: Any, _ctx: Any) -> Any:
            waiting = early(tvm.IRModule({"kernel": func}))["kernel"]
            if waiting.same_as(func):
                return func
            call = tirx.Evaluate(T.ptx.griddepcontrol.launch_dependents())
            return waiting.with_body(tirx.SeqStmt([call, waiting.body]))

    at_once: Any = AtOnce()
    instead = {"wait": [], "at once": [at_once]}.get(build, [early])
    passes: list[Any] = []
    for each in cuda_pipeline.PASSES:
        passes += instead if each.info.name == "DependentLaunches" else [each]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(cuda_pipeline, "PASSES", passes))
        if build not in ("wait", "early", "at once"):
            stack.enter_context(mock.patch.object(cuda, "_DEPENDENT_LAUNCH_US", float(build)))
        model = tvm_edge.compile(f"zoo:{name}", "cuda", fallback="none", tuning_logs=False)
    model.export(folder / f"{name}.{build}.tvme")
    return {"kernels": [kernel.name for kernel in model.report.kernels]}


def _measure(name: str, *builds_and_folder: Any) -> dict[str, Any]:
    import tvm

    import tvm_edge

    *builds, folder = builds_and_folder
    paths = {build: folder / f"{name}.{build}.tvme" for build in builds}
    models = {build: tvm_edge.load(path) for build, path in paths.items()}
    differ = dict.fromkeys(builds, 0.0)
    for seed in range(_INPUTS):
        rng = np.random.default_rng(seed)
        inputs = {
            spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
            for spec in models[builds[0]].inputs
        }
        expected = models[builds[0]].run(inputs)
        for build, model in models.items():
            for key, value in model.run(inputs).items():
                apart = np.abs(value.astype("float64") - expected[key]).max()
                differ[build] = max(differ[build], apart / np.abs(expected[key]).max())
    device = tvm.cuda(0)
    placed = {key: tvm.runtime.tensor(value, device) for key, value in inputs.items()}
    us: dict[str, list[float]] = {build: [] for build in builds}
    for turn in range(_TURNS):
        for build in builds[:: 1 if turn % 2 else -1]:
            us[build].append(machine_us(paths[build], "cuda", placed, _CALLS))
    return {"us": us, "differ": differ}


_JOBS: dict[str, Job] = {"compile": _compile, "measure": _measure}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", nargs="+", default=list(_NETWORKS))
    parser.add_argument("--launch-us", nargs="*", default=[], metavar="US", help="beside 1.25")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    builds = ["wait", "early", "at once", *options.launch_us]
    pairs = [(name, build) for name in options.networks for build in builds]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda pair: run_child(_MODULE, "compile", *pair, folder), pairs)
            made = dict(zip(pairs, results, strict=True))
        print(json.dumps(describe_machine()))
        print(f"| network | {' | '.join(builds)} |\n|---|{'---|' * len(builds)}")
        for name in options.networks:
            failed = {b: made[name, b] for b in builds if "failed" in made[name, b]}
            result = failed or run_child(_MODULE, "measure", name, *builds, folder)
            found[name] = result
            if "us" not in result:
                print(f"{name}: {result}", flush=True)
                continue
            cells = []
            for build in builds:
                same = made[name, build]["kernels"] == made[name, "wait"]["kernels"]
                allowed = 0.0 if same and build in ("early", "at once") else _TOLERANCE
                times = result["us"][build]
                wrong = "" if result["differ"][build] <= allowed else " WRONG"
                cells.append(f"{median(times):,.0f} [{min(times):,.0f}–{max(times):,.0f}]{wrong}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    if is_child():
        serve(_JOBS)
    else:
        main()
