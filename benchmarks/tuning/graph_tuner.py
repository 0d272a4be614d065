"""Gain of choosing layouts for whole networks.

By default the networks are those of :mod:`benchmarks.cpu.workloads`. A third of the trials are in
other layouts. On a GPU all of a network stays there.

``--solve`` measures no network: it says how long each takes to be solved, by default those of the
zoo; without records most times are estimates, which makes a problem no smaller.

The same records serve all choices of a network: ``greedy``, each convolution as it is fastest in
blocks of a vector register (on a GPU: in NCHW), by estimates where blocks begin and end; ``NCHW``
and ``NCHW16c``, …, one layout wherever a convolution can have it, with the fastest configuration
known in it; ``graph``, the least sum, which ``tune`` keeps if it is faster than the two before it
(``kept`` in its line: which layouts, if any). Every choice is an artifact whose outputs are
compared with ONNX Runtime's before, to 1e-4 of an output's largest value, and timed in processes of
its own that take turns. A figure is the median of the processes with their range in brackets.

``predicted`` is the sum of operators and transforms, and what the sum does not have: the measured
time of the layout of one vector register, or on a GPU of NCHW, less its sum. For that layout it
holds by construction.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import timed_runs
from benchmarks.cpu.workloads import NETWORKS

_WARM_UP = 0.5  # seconds


# ------------------------------------------------------------------ what the child processes do


def _tune(name: str, target: str, trials: str, folder: Path) -> dict[str, Any]:
    """A job: measure convolutions, those in other layouts among them."""
    import tvm_edge
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.tasks import extract_tasks

    path = folder / f"{name}.onnx"
    tasks = extract_tasks(path, resolve_target(target))
    start = perf_counter()
    result = tvm_edge.tune(
        path,
        target,
        trials=max(1, int(trials) * len(tasks)),
        tuning_logs=folder / "records",
        graph=True,
    )
    return {
        "trials": result.trials,
        "failed": result.failed,
        "kept": result.graph.info.convolutions if result.graph and result.graph.taken else {},
        "seconds": perf_counter() - start,
    }


def _compile(name: str, target: str, folder: Path) -> dict[str, Any]:
    """A job: an artifact for each choice, its results compared, and what its sum is."""
    from tvm_edge.hardware import resolve_target
    from tvm_edge.report import layout_name
    from tvm_edge.schedules.layouts import block_sizes, usual_block
    from tvm_edge.tuning.graph_tuner import GraphTuner, uniform
    from tvm_edge.tuning.layout_costs import plan_of

    path, resolved = folder / f"{name}.onnx", resolve_target(target)
    inputs, expected = load_inputs(name, folder), load_expected(name, folder)
    tuner = GraphTuner(path, target, resolved, None, folder / "records")
    start = perf_counter()
    options, problem = tuner.problem()
    costs = perf_counter() - start
    start = perf_counter()
    best = problem.solve()
    solve = perf_counter() - start
    found = {
        layout_name(block): uniform(problem, tuner.graph, block)
        for block in (0, *block_sizes(resolved.spec))
    }
    found["graph"] = best
    choices: dict[str, dict[str, Any]] = {}
    for choice in ("greedy", *found):
        plan: Any = False
        row: dict[str, Any] = {}
        if choice in found:
            layouts = found[choice]
            plan = plan_of(tuner.graph, layouts.layouts, options)
            moved = problem.needed(layouts.layouts)
            row = {
                "sum": layouts.seconds,
                "gap": layouts.gap,
                "transforms": len(moved),
                "transform_us": 1e6 * sum(t.seconds for t in moved),
                "layouts": {
                    layout_name(block): sum(
                        layouts.layouts[i] == block for i in tuner.graph.convolutions
                    )
                    for block in (0, *block_sizes(resolved.spec))
                },
            }
        model = tuner.compiled(plan)
        model.export(folder / f"{name}.{choice}.tvme")
        compared = compare_outputs(model.run(inputs), expected, path)
        if not compared["right"]:
            raise ValueError(f"the result of {choice} is wrong: {compared}")
        choices[choice] = row | {"error": compared["error"]}
        del model
    ways = [way for own in options.values() for way in own.values()]
    return {
        "choices": choices,
        "usual": layout_name(usual_block(resolved.spec)),
        "nodes": len(tuner.graph.nodes),
        "convolutions": len(tuner.graph.convolutions),
        "ways": len(ways),
        "measured_ways": sum(way.measured for way in ways),
        "cost_seconds": costs,
        "solve_seconds": solve,
    }


def _solve(name: str, target: str, folder: Path) -> dict[str, Any]:
    """A job: solve a network's problem, with whatever records there are."""
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.graph_tuner import GraphTuner

    resolved = resolve_target(target)
    tuner = GraphTuner(f"zoo:{name}", target, resolved, None, folder / "records")
    start = perf_counter()
    _, problem = tuner.problem()
    costs = perf_counter() - start
    start = perf_counter()
    best = problem.solve()
    return {
        "nodes": len(tuner.graph.nodes),
        "convolutions": len(tuner.graph.convolutions),
        "cost_seconds": costs,
        "solve_seconds": perf_counter() - start,
        "gap": best.gap,
    }


def _time(name: str, choice: str, seconds: str, folder: Path) -> dict[str, Any]:
    """A job: time an artifact."""
    import tvm_edge

    model = tvm_edge.load(folder / f"{name}.{choice}.tvme")
    inputs = load_inputs(name, folder)
    timed_runs(lambda: model.run(inputs), _WARM_UP)
    return {"ms": 1e3 * median(timed_runs(lambda: model.run(inputs), float(seconds)))}


# ------------------------------------------------------------------ the parent


def _measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything about one network."""
    row: dict[str, Any] = {"network": name}
    saved = run_child(__name__, "prepare", name, folder)
    if "failed" in saved:
        return row | saved
    if not options.no_tune:
        row["tune"] = run_child(__name__, "tune", name, options.target, options.trials, folder)
        print(name, row["tune"], flush=True)
    compiled = run_child(__name__, "compile", name, options.target, folder)
    row |= compiled
    if "failed" in compiled:
        return row
    times: dict[str, list[float]] = {choice: [] for choice in row["choices"]}
    for _ in range(options.rounds):
        for choice in times:
            timed = run_child(__name__, "time", name, choice, options.seconds, folder)
            if "failed" in timed:
                return row | timed
            times[choice].append(timed["ms"])
    usual = row["choices"][row["usual"]]
    rest = median(times[row["usual"]]) - 1e3 * usual["sum"]
    for choice, own in row["choices"].items():
        own["ms"] = times[choice]
        if "sum" in own:
            own["predicted_ms"] = 1e3 * own["sum"] + rest
            own["off"] = own["predicted_ms"] / median(times[choice]) - 1
    return row


def _solved(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Seconds to solve a network of the zoo."""
    row: dict[str, Any] = {"network": name} | run_child(__name__, "solve", name, target, folder)
    if "failed" not in row:
        print(
            f"{name}: {row['convolutions']} convolutions of {row['nodes']} operators, solved in "
            f"{row['solve_seconds']:.2f} s (costs {row['cost_seconds']:.1f} s), "
            f"gap {row['gap']:.1%}",
            flush=True,
        )
    return row


def _report(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['network']}: {row['failed']}"
    lines = [
        f"{row['network']}: {row['convolutions']} convolutions of {row['nodes']} operators, "
        f"{row['measured_ways']} of {row['ways']} ways measured, solved in "
        f"{row['solve_seconds']:.2f} s (costs {row['cost_seconds']:.1f} s)",
        "| choice | ms | predicted | off | transforms | error |",
        "|---|---|---|---|---|---|",
    ]
    for choice, own in row["choices"].items():
        predicted = f"{own['predicted_ms']:.3f} | {own['off']:+.1%}" if "sum" in own else "– | –"
        moved = f"{own['transforms']}, {own['transform_us']:.0f} µs" if "sum" in own else "–"
        lines.append(
            f"| {choice} | {spread(own['ms'], '.3f')} | {predicted} | {moved} "
            f"| {own['error']:.1e} |"
        )
    return "\n".join(lines)


JOBS: dict[str, Job] = {
    "prepare": write_reference,
    "tune": _tune,
    "compile": _compile,
    "solve": _solve,
    "time": _time,
}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("graph_tuner", __doc__)
    parser.shared(networks=None, target=Among("llvm", ("llvm", "opencl", "cuda")), json=None)
    parser.shared(trials=48, records=None, no_tune=False, rounds=5, seconds=2.0)
    parser.add_argument("--solve", action="store_true", help="only say how long that takes")
    options = parser.parse_args(arguments)
    from tvm_edge import zoo

    machine = describe_machine()
    print(json.dumps(machine), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.records or Path(temporary)
        (folder / "records").mkdir(parents=True, exist_ok=True)
        for name in options.networks or (zoo.names() if options.solve else NETWORKS):
            if options.solve:
                rows.append(_solved(name, options.target, folder.absolute()))
            else:
                rows.append(_measure(name, options, folder.absolute()))
                print(_report(rows[-1]), flush=True)
            save_json(options.json, {"machine": machine, "networks": rows})
