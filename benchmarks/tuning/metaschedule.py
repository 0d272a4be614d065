"""Search of tvm-edge beside TVM's MetaSchedule.

Each tunes some of the convolutions of :data:`benchmarks.tuning.workloads.SPACES` from nothing, with
as many trials as are 15 % of our space (``--trials`` for a quick look); a model that has the
convolution several times, with filters of its own each, is then compiled with what was found.
Times are of all its kernels, by CUPTI on CUDA and by the clock on a CPU, in turns, a process each;
results are checked before.

Each step prints a line when it ends, and ``--json`` is written after each convolution: a run that
is stopped has what it measured.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import timed_runs
from benchmarks.tuning.workloads import SPACES, describe

_SHARE = 0.15
_COPIES = 6
_TOLERANCE = 1e-4

# MetaSchedule ends a build or a run after 30 s, the start of its process included, whose import of
# TVM alone takes that long where as many start at once as there are cores, beside other work.
_BUILD_SECONDS, _RUN_SECONDS = 300.0, 120.0
# What its database has of a trial that failed is not seconds, but 10**10.
_FAILED_SECONDS = 1e9
_LONGEST = 6  # parts of its time that are told


def _model(number: int) -> tuple[Any, Any]:
    from tvm_edge.tuning.conv_problem import make_problem
    from tvm_edge.tuning.repeat_convolution import repeat_convolution

    problem = make_problem(SPACES[number], number)
    return repeat_convolution(SPACES[number], problem, _COPIES), problem


def _trials(number: str, target: str, folder: Path) -> dict[str, Any]:
    """A job: how many trials both get; writes the operands."""
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.tasks import legal_configs

    _, problem = _model(int(number))
    np.savez(folder / f"{number}.npz", image=problem.image, expected=problem.expected)
    configs = len(legal_configs(SPACES[int(number)], resolve_target(target)))
    return {"configs": configs, "trials": int(_SHARE * configs)}


def _ours(number: str, target: str, trials: str, folder: Path) -> dict[str, Any]:
    """A job: tune and export."""
    import tvm_edge

    model, _ = _model(int(number))
    records, start = folder / f"records{number}", perf_counter()
    result = tvm_edge.tune(model, target, trials=int(trials), tuning_logs=records)
    seconds = perf_counter() - start
    best = min(task.best for task in result.tasks)
    # Convolutions that do not depend on each other, and are compared one by one.
    compiled = tvm_edge.compile(
        model, target, fallback="none", parallel_fusion=False, tuning_logs=records
    )
    compiled.export(folder / f"{number}.tvme")
    measured = result.trials - result.failed
    return {"seconds": seconds, "measured": measured, "best_us": best * 1e6}


def _metaschedule(number: str, target: str, trials: str, folder: Path) -> dict[str, Any]:
    """A job: the same by MetaSchedule, as its documentation has it."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule

    from tvm_edge.hardware import resolve_target
    from tvm_edge.lowering.cuda_compiler import cuda_compiler

    resolved = resolve_target(target)
    known = json.loads(str(resolved.target))
    if target == "llvm":
        known["num-cores"] = resolved.spec.cores
    device = tvm.target.Target(known)
    # Its tasks are the kernels of a module in which they are fused already.
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    model, _ = _model(int(number))
    kernels = fused(model)
    start = perf_counter()
    # Its workers take the compiler that this process has; ours takes the same.
    cuda = target == "cuda"
    compiler = cuda_compiler(str(resolved.target.attrs["arch"])) if cuda else nullcontext()
    with compiler, meta_schedule.Profiler() as profiler:
        database = meta_schedule.relax_integration.tune_relax(
            mod=kernels,
            params={},
            target=device,
            work_dir=str(folder / f"work{number}"),
            max_trials_global=int(trials),
            num_trials_per_iter=16,
            # As many processes as there are cores for us, which may be fewer than the machine's.
            builder=meta_schedule.builder.LocalBuilder(
                max_workers=len(os.sched_getaffinity(0)), timeout_sec=_BUILD_SECONDS
            ),
            runner=meta_schedule.runner.LocalRunner(timeout_sec=_RUN_SECONDS),
            seed=1,
        )
        seconds = perf_counter() - start
        times = [
            median(map(float, record.run_secs))
            for record in database.get_all_tuning_records()
            if record.run_secs
        ]
        good = [t for t in times if t < _FAILED_SECONDS]
        if not good:
            return {"failed": f"none of {len(times)} trials could be measured"}
        # Of the model before its kernels are made: making them again annotates them, and records
        # are of the function as it was, to the last attribute; of another it would compile the
        # definition, not the best that was found.
        _check_found(fused(model), database, device)
        compiled = meta_schedule.relax_integration.compile_relax(
            database, model, device, params=None
        )
        compiled.export_library(str(folder / f"{number}.so"))
    parts = {name: float(t) for name, t in profiler.get().items() if name != "Total"}
    longest = dict(sorted(parts.items(), key=lambda part: -part[1])[:_LONGEST])
    best_us = min(good) * 1e6
    return {"seconds": seconds, "measured": len(good), "best_us": best_us, "parts": longest}


def _check_found(kernels: Any, database: Any, target: Any) -> None:
    """Refuse to compare kernels that MetaSchedule's database has no record of."""
    from tvm import relax, tirx

    with target, database:
        scheduled = relax.transform.MetaScheduleApplyDatabase()(kernels)
    for name, func in scheduled.functions_items():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in func.attrs:
            raise ValueError(f"MetaSchedule has no record of {name.name_hint}: nothing to compare")


def _time(number: str, target: str, which: str, folder: Path) -> dict[str, Any]:
    """A job: check one, and take the time of one of its convolutions."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    import tvm_edge

    with np.load(folder / f"{number}.npz") as given:
        image, expected = given["image"], given["expected"]
    if which == "ours":
        model = tvm_edge.load(folder / f"{number}.tvme")

        def run() -> list[Any]:
            return list(model.run({"image": image}).values())
    else:
        device = tvm.device("cpu" if target == "llvm" else target, 0)
        library = tvm.runtime.load_module(str(folder / f"{number}.so"))
        machine = VirtualMachine(library, device)
        placed = tvm.runtime.tensor(image, device)

        def run() -> list[Any]:
            return [result.numpy() for result in machine["main"](placed)]

    for power, result in enumerate(run()):
        error = relative_error(result / 2**power, expected)
        if not error <= _TOLERANCE:
            return {"failed": f"a result is off by {error:.1e} of the largest value"}
    if target == "cuda":
        from benchmarks.gpu.cupti import busy_us

        timed_runs(run, 0.2)
        each = [busy_us(run) for _ in range(10)]
        return {"us": median(each) / _COPIES}
    timed_runs(run, 0.5)
    return {"us": median(timed_runs(run, 2.0)) / _COPIES * 1e6}


JOBS: dict[str, Job] = {
    "trials": _trials,
    "ours": _ours,
    "metaschedule": _metaschedule,
    "time": _time,
}


def _measure(
    number: int, target: str, trials: int | None, rounds: int, folder: Path
) -> dict[str, Any]:
    """One convolution; a line for each step."""
    us: dict[str, list[float]] = {"ours": [], "metaschedule": []}
    row: dict[str, Any] = {"us": us}
    name = describe(SPACES[number])
    space = run_child(__name__, "trials", number, target, folder)
    if "failed" in space:
        print(f"{name}: {space['failed']}", flush=True)
        return {**row, **space}
    row["configs"] = space["configs"]
    row["trials"] = min(trials or space["trials"], space["configs"])
    print(f"{name}: {row['configs']} configurations, {row['trials']} trials", flush=True)
    for which in us:
        row[which] = run_child(__name__, which, number, target, row["trials"], folder)
        print(f"  {which}: {_step(row[which])}", flush=True)
    for turn in range(1, rounds + 1):
        for which, times in us.items():
            if "failed" in row[which]:
                continue
            result = run_child(__name__, "time", number, target, which, folder)
            if "us" in result:
                times.append(result["us"])
                print(f"  time {turn} of {rounds}, {which}: {result['us']:.2f} µs", flush=True)
            else:
                row[which] |= result
                print(f"  time {turn} of {rounds}, {which}: {result['failed']}", flush=True)
    return row


def _step(result: dict[str, Any]) -> str:
    """Words for what tuning came to."""
    if "failed" in result:
        return str(result["failed"])
    best = f"best {result['best_us']:.2f} µs"
    text = f"{result['measured']} measured in {result['seconds']:.0f} s, {best}"
    parts = [f"{name} {seconds:.1f} s" for name, seconds in result.get("parts", {}).items()]
    return f"{text} ({', '.join(parts)})" if parts else text


def _line(number: int, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {describe(SPACES[number])} | {row['failed']} |"
    cells = [describe(SPACES[number]), str(row["trials"])]
    for which, times in row["us"].items():
        if "failed" in row[which]:
            cells += [row[which]["failed"], "–"]
            continue
        cells.append(spread(times, ".2f"))
        cells.append(f"{row[which]['seconds']:.0f}")
    if _is_whole(row):
        cells.append(f"**{_ratio(row):.2f}**")
    return "| " + " | ".join(cells) + " |"


def _is_whole(row: dict[str, Any]) -> bool:
    """True if both were timed, and right each time."""
    return all(times and "failed" not in row[which] for which, times in row["us"].items())


def _ratio(row: dict[str, Any]) -> float:
    return median(row["us"]["metaschedule"]) / median(row["us"]["ours"])


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("tuning_metaschedule", __doc__)
    parser.shared(target=Among("cuda", ("cuda", "llvm")), spaces=None, rounds=3, json=None)
    parser.shared(trials=None)
    options = parser.parse_args(arguments)
    spaces = chosen_numbers(parser, "--spaces", options.spaces, len(SPACES))
    print(json.dumps(describe_machine()), flush=True)
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in spaces:
            found[number] = _measure(
                number, options.target, options.trials, options.rounds, Path(folder)
            )
            save_json(options.json, found)
    print("| convolution | trials | ours, µs | s | MetaSchedule, µs | s | MetaSchedule / ours |")
    print("|---|---|---|---|---|---|---|")
    for number, row in found.items():
        print(_line(number, row))
    ratios = [_ratio(row) for row in found.values() if _is_whole(row)]
    if ratios:
        print(f"geometric mean of {len(ratios)}: {geometric_mean(ratios):.2f}")
