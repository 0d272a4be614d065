"""Independent operators in one kernel: pairs and triples, copies, whole networks.

``groups``
    The pairs and triples of ``results/fusion/groups.json``: operators of EMDL'21's six networks at
    their own shapes. Each is compiled with fusion off, with all of it fused (``--orders``: in every
    order of its members, too), and as ``auto`` decides; and timed launch by launch and, on CUDA,
    inside a CUDA graph.
    Beside them the members concurrently: on CUDA streams, as branches of a CUDA graph, or on OpenCL
    queues of their own.
``identical``
    An operator of each of the six networks two to eight times, with inputs of its own each
    time (Figure 9), and a batch of as many (Figure 3).
``networks``
    Networks (``--networks``; by default three with branches), ``auto`` against off; in a graph
    those alone that run without the host.

Results are compared with ONNX Runtime's before anything is timed. ``--png`` draws the gains of
``groups``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, astuple
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any
from unittest import mock

import numpy as np
import onnx

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.fusion.timing import time_row
from benchmarks.fusion.workloads import IDENTICAL, group_model, groups, operator_model

_NETWORKS = ("googlenet", "inception_v3", "squeezenet1_0")
_TOLERANCE = 1e-4  # of the largest value
_COPIES = range(2, 9)
_ROWS_A_PROCESS = 8

# ------------------------------------------------------------------ what the child processes do


def _extract(network: str, operators: str, folder: Path) -> dict[str, Any]:
    """Write the models of a network's operators, or of itself: making it takes seconds."""
    from tvm_edge import zoo

    for place, operator in json.loads(operators).items():
        model = operator_model(network, *operator) if operator else zoo.build(network)
        onnx.save(model, folder / f"{place}.onnx")
    return {}


def _model(members: list[str], folder: Path) -> onnx.ModelProto:
    """Several operators side by side, or one by itself."""
    models = [onnx.load(folder / f"{member}.onnx") for member in members]
    return group_model(models) if len(models) > 1 else models[0]


def _compile(variants: str, target: str, row: str, fallback: str, folder: Path) -> dict[str, Any]:
    """Compile each variant of a row, and what failed of which."""
    found: dict[str, Any] = {}
    for name, (members, fusion) in json.loads(variants).items():
        evenly = name.startswith("even")
        how: AbstractContextManager[list[bool]] = nullcontext([])
        if evenly or name.startswith("order"):
            how = _as_given(evenly)
        try:
            model = _model(members, folder)
            with how as differs:
                found[name] = _compile_one(
                    model, target, fallback, fusion, folder / f"{row}.{name}"
                )
            if name.startswith("only"):
                found[name].update(_policy_view(model, target, fallback))
            if evenly and not any(differs):
                del found[name]  # as many groups in either way
        except Exception as error:  # of any layer, CUDA's and LLVM's included: it is reported
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
    return found


@contextmanager
def _as_given(evenly: bool) -> Iterator[list[bool]]:
    """Members of a launch in the order of the model, whatever the policy would say.

    Parameters
    ----------
    evenly : bool
        With so few groups that they are spread evenly.

    Returns
    -------
    list of bool
        By launch, whether it can have so few; once it was compiled.
    """
    from tvm_edge.relay_passes.fuse import parallel_fusion
    from tvm_edge.schedules.launch_time import can_be_even
    from tvm_edge.schedules.parallel_policy import Problem

    found: list[bool] = []

    def spread_over(kernels: Any, spec: Any) -> list[int]:
        few = can_be_even(kernels, spec)
        found.extend(few)
        return [spec.cores if evenly and each else 0 for each in few]

    with (
        mock.patch.object(Problem, "ordered", lambda _, members: tuple(members)),
        mock.patch.object(parallel_fusion, "spread_over", spread_over),
    ):
        yield found


def _policy_view(model: Any, target: str, fallback: str) -> dict[str, Any]:
    """Policy's view of a model: its device, and the launches of each of its kernels."""
    from tvm_edge.compiler.compilation import begin
    from tvm_edge.compiler.options import Options
    from tvm_edge.compiler.pipeline import PIPELINE
    from tvm_edge.relay_passes.ir.expressions import kernel_calls
    from tvm_edge.schedules.launch_work import launches_of

    begun = begin(model, target, Options(fallback=fallback, tuning_logs=None))
    done = PIPELINE.part(until="FuseParallel").run(begun)
    found = [launches_of(done.module[name]) or () for name in kernel_calls(done.module)]
    launches = [[list(astuple(launch)) for launch in kernel] for kernel in found]
    return {"device": asdict(done.resolved.spec), "launches": launches}


def _compile_one(model: Any, target: str, fallback: str, fusion: Any, path: Path) -> dict[str, Any]:
    """Compile, compare the results with ONNX Runtime's, write the artifact and its inputs."""
    import tvm_edge

    chance, inputs = np.random.default_rng(1), {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in constants:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            inputs[value.name] = chance.standard_normal(shape).astype("float32")
    built = tvm_edge.compile(model, target, fallback=fallback, parallel_fusion=fusion)
    results = built.run(inputs)
    # Beside as many other compilations as there are cores, its threads would wait for each other.
    worst = 0.0
    for name, expected in onnxruntime_function(model, threads=1)(inputs).items():
        worst = max(worst, relative_error(results[name], expected))
    if not worst <= _TOLERANCE:
        raise ValueError(f"a result is wrong by {worst:.1e} of the largest value")
    built.export(path.with_name(path.name + ".tvme"))
    np.savez(path.with_name(path.name + ".npz"), **inputs)
    taken = [group for group in built.report.fusion_groups if group["taken"]]
    return {"taken": len(taken), "kernels": len(built.report.kernels), "error": worst}


def _time(rows: str, target: str, folder: Path) -> dict[str, Any]:
    """The times of some rows; a process for each would take longer to start than to measure."""
    variants: dict[str, list[str]] = json.loads(rows)
    return {row: time_row(row, names, target, 1, folder) for row, names in variants.items()}


JOBS: dict[str, Job] = {"extract": _extract, "compile": _compile, "time": _time}


# ----------------------------------------------------------------------------------- the parent


Variants = dict[str, tuple[list[list[Any]], Any]]
"""Variants to compile, by name: members (network, node, batch) and ``parallel_fusion=``."""


def _of_group(members: list[list[Any]], orders: bool) -> Variants:
    found: Variants = {"off": (members, False), "auto": (members, "auto"), "fused": (members, True)}
    for place, order in enumerate(itertools.permutations(members) if orders else ()):
        found[f"order{place}"] = found[f"even{place}"] = (list(order), True)
    for place, member in enumerate(members):
        found[f"only{place}"] = ([member], False)
    return found


def _of_copies(operator: list[str], count: int) -> Variants:
    copies = [operator] * count
    batch = [[*operator, count]]
    return {"off": (copies, False), "fused": (copies, True), "batch": (batch, False)}


def _rows(options: argparse.Namespace) -> dict[str, Variants]:
    """Variants of each row, by title."""
    if options.part == "networks":
        return {
            name: {"off": ([[name]], False), "auto": ([[name]], "auto")}
            for name in options.networks
        }
    if options.part == "identical":
        return {
            f"{count} × {'/'.join(operator)}": _of_copies(operator, count)
            for operator in map(list, IDENTICAL)
            for count in _COPIES
        }
    chosen = groups()
    return {
        f"{number}: " + " + ".join("/".join(member) for member in chosen[number]): _of_group(
            chosen[number], options.orders
        )
        for number in range(len(chosen))
    }


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each group, with the times of all variants by how they were launched."""
    every = list(_rows(options).items())
    rows = [every[i] for i in options.rows]
    places = _written([variants for _, variants in rows], options.jobs, folder)
    # Networks as a user would compile them; operators alone are to be on the GPU.
    fallback = "list" if options.part == "networks" else "none"

    def build(row: int) -> dict[str, Any]:
        named = {
            name: ([places[json.dumps(member)] for member in members], fusion)
            for name, (members, fusion) in rows[row][1].items()
        }
        given = (json.dumps(named), options.target, row, fallback, folder)
        return run_child(__name__, "compile", *given)

    with ThreadPoolExecutor(options.jobs) as pool:
        built = list(pool.map(build, range(len(rows))))
    for start in range(0, len(rows), _ROWS_A_PROCESS):
        numbers = range(len(rows))[start : start + _ROWS_A_PROCESS]
        names = {
            n: [name for name in rows[n][1] if "failed" not in built[n].get(name, {"failed": ""})]
            for n in numbers
        }
        found = _timed(names, options.target, options.rounds, folder)
        for number in numbers:
            title = rows[number][0]
            row: dict[str, Any] = {"title": title, "built": built[number], "us": {}}
            if failed := {k: v for k, v in built[number].items() if k not in names[number]}:
                print(title, failed, flush=True)
            if "failed" in found:
                print(title, found["failed"], flush=True)
            else:
                row.update(found[str(number)])
                if row["not timed"]:
                    print(title, row["not timed"], flush=True)
                print(_line(row), flush=True)
            yield row


def _timed(names: dict[int, list[str]], target: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Times of rows, in as many processes as there are rounds.

    Every second process opens variants the other way round: what is opened later lies elsewhere in
    the device's memory, which is 4 % of mobilenet_v2.
    """
    found: dict[str, Any] = {}
    for number in range(rounds):
        turned = {n: each[:: -1 if number % 2 else 1] for n, each in names.items()}
        once = run_child(__name__, "time", json.dumps(turned), target, folder)
        if "failed" in once:
            return once
        for row, new in once.items():
            kept = found.setdefault(row, {"us": {}, "not timed": new["not timed"]})
            for how, times in new["us"].items():
                for name, us in times.items():
                    kept["us"].setdefault(how, {}).setdefault(name, []).extend(us)
    return found


def _written(rows: list[Variants], jobs: int, folder: Path) -> dict[str, str]:
    """Write every operator's model once; the files' names by member, as JSON."""
    members = {json.dumps(m) for row in rows for given, _ in row.values() for m in given}
    places = {member: f"operator{number}" for number, member in enumerate(sorted(members))}
    networks: dict[str, dict[str, Any]] = {}
    for member, place in places.items():
        network, *operator = json.loads(member)
        networks.setdefault(network, {})[place] = operator

    def write(network: str) -> None:
        given = (network, json.dumps(networks[network]), folder)
        if failed := run_child(__name__, "extract", *given):
            raise SystemExit(f"{network}: {failed['failed']}")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(write, networks))
    return places


def _medians(row: dict[str, Any], how: str) -> dict[str, float]:
    return {which: median(us) for which, us in row["us"].get(how, {}).items()}


def _line(row: dict[str, Any]) -> str:
    cells = [row["title"]]
    for how in row["us"]:
        us = ", ".join(f"{which} {value:.2f}" for which, value in _medians(row, how).items())
        cells.append(f"{how}: {us}")
    return "| " + " | ".join(cells) + " |"


def summarise(rows: list[dict[str, Any]]) -> None:
    """Gains over launches one after the other: of what ``auto`` takes, and of the best there is."""
    for how in ("stream", "graph"):
        for size in sorted({_size(row) for row in rows}):
            chosen = [row for row in rows if _size(row) == size and _complete(row, how)]
            if not chosen:
                continue
            middle = [_medians(row, how) for row in chosen]
            gains = [us["off"] / us["auto"] for us in middle]
            best = [us["off"] / min(_fused(us)) for us in middle]
            accepted = [
                g for g, row in zip(gains, chosen, strict=True) if row["built"]["auto"]["taken"]
            ]
            oracle = sum(max(0.0, gain - 1) for gain in best)
            print(f"{how}, {size} members: fused {_spread(best)}")
            if accepted:
                print(
                    f"  auto takes {len(accepted)} of {len(chosen)}: {_spread(accepted)}; "
                    f"{sum(gain > 1 for gain in accepted) / len(accepted):.0%} gain; "
                    f"{sum(gain - 1 for gain in accepted) / oracle:.0%} of the oracle's gain"
                )
            peers = [us["concurrent"] / us["auto"] for us in middle if "concurrent" in us]
            if peers:
                print(f"  against concurrent launches: {_spread(peers)}")


def _size(row: dict[str, Any]) -> int:
    return sum(name.startswith("only") for name in row["built"])


def _complete(row: dict[str, Any], how: str) -> bool:
    return {"off", "auto"} <= set(row["us"].get(how, {})) and bool(_fused(_medians(row, how)))


def _fused(us: dict[str, float]) -> list[float]:
    return [value for which, value in us.items() if which.startswith(("fused", "order", "even"))]


def _spread(ratios: list[float]) -> str:
    return f"{geometric_mean(ratios):.3f} [{min(ratios):.2f}–{max(ratios):.2f}]"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """All gains of merged launches, in order, and which of them ``auto`` takes."""
    from matplotlib import pyplot

    ways = [how for how in ("stream", "graph") if any(how in row["us"] for row in rows)]
    figure, axes = pyplot.subplots(
        1, len(ways), figsize=(5 * len(ways), 4), layout="constrained", squeeze=False
    )
    for axis, how in zip(axes[0], ways, strict=True):
        whole = [row for row in rows if _complete(row, how)]
        gain = [_medians(row, how)["off"] / min(_fused(_medians(row, how))) for row in whole]
        order = np.argsort(gain)
        taken = [bool(whole[i]["built"]["auto"]["taken"]) for i in order]
        colours = ["tab:blue" if yes else "lightgray" for yes in taken]
        axis.bar(range(len(order)), np.array(gain)[order], color=colours)
        axis.axhline(1, color="black", lw=0.8)
        axis.set(title=how, xlabel="group (blue: auto merges it)", ylabel="off / merged")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("parallel_fusion", __doc__)
    parser.add_argument("--part", choices=["groups", "identical", "networks"], default="groups")
    parser.shared(target=Among("cuda", ("cuda", "opencl")), networks=_NETWORKS, rows=None)
    parser.shared(rounds=3, jobs=max(1, len(os.sched_getaffinity(0)) - 1), json=None, png=None)
    parser.add_argument("--orders", action="store_true", help="members in every order as well")
    options = parser.parse_args(arguments)
    options.rows = chosen_numbers(parser, "--rows", options.rows, len(_rows(options)))
    print(json.dumps(describe_machine()))
    with tempfile.TemporaryDirectory() as name:
        rows = []
        for row in measure(options, Path(name)):
            rows.append(row)
            # After every row: a run that is cut off has measured something.
            save_json(options.json, rows)
    if options.part == "groups":
        summarise(rows)
        if options.png:
            draw(rows, options.png)
