"""Very deep networks in little memory: budgets, plans, and their peaks.

Tables 1 to 4 of Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", for
YOLOv1 (original, medium, small, large), VGG16 and VGG19. Every compilation and every run has a
process of its own; the latter loads the artifact on TVM's runtime tier and nothing else. Its peak
is anonymous and shared memory, sampled every 2 ms, and what the GPU's memory in use grows by
(NVML). Outputs are compared with ONNX Runtime's. With pocl "cold" is the peak of an artifact's
first process, in which pocl compiles kernels once more, and which is not what is predicted.

**Budgets** (``--part budgets``). Each network with no budget and with those of ``--budgets``
(256 MiB, and for YOLOv1 1 GiB and 512 MiB as well; with CUDA 1 GiB): the plan that was taken, the
predicted peak, the measured one, and the time of a frame (the median of ``--frames``, 25 as in the
paper, or as many as ``--seconds`` allow, after one that warms up). Bars: the peak is within the
budget, and within 10 % of the prediction. Where the plan is to pipeline frames, they are streamed.
The same artifact runs in a control group of the budget's size as well, the pages of the mapped
weights included, which it has to evict; and beside it, on a GPU, the artifact that was compiled
without a budget.

**Strategies** (``--part strategies``). Each plan by itself, whatever fits. On ``llvm``: as is (the
paper's CPU). On a GPU the paper's columns: as is, FC split in 4 parts, FC on the CPU, the same with
frames pipelined; and with convolutions streamed. ``--memory separate`` (Table 1): the GPU has its
own copy of what it reads; ``unified`` (Table 2): host and device share one, on OpenCL devices that
can; by default both. Energy of a frame (Table 3) by NVML, "not measured" where there is none.

**Layers** (``--part layers``). Table 4: all memory, and the share of the fully connected layers.

``--quick`` takes two small networks, one budget and few frames; ``--floor`` measures the constants
of ``tvm_edge/memory/floor.py``. ``--json`` is written after each row.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import run_child
from benchmarks.memory import jobs, tables
from benchmarks.memory.jobs import NO_BUDGET
from benchmarks.memory.limit import limited
from benchmarks.memory.peaks import measure_peak

NETWORKS = ("yolov1", "yolov1_medium", "yolov1_small", "yolov1_large", "vgg16", "vgg19")
TARGETS = ("llvm", "opencl", "cuda")
BUDGETS = {"yolov1": "1GiB,512MiB,256MiB"}
BUDGET = "256MiB"  # of the others
CUDA_BUDGET = "1GiB"  # of all: CUDA's context alone takes more than half of that
MEMORY = ("separate", "unified")
PARTS = ("budgets", "strategies", "layers")
QUICK = {
    "networks": ("yolov1_small", "vgg16"),
    "frames": 3,
    "seconds": 2.0,
}

_child = partial(run_child, jobs.__name__)
# By strategy the plan, and whether frames are pipelined.
_STRATEGIES = {
    "as is": ("as is", False),
    "split": ("FC split ×4", False),
    "offload": ("FC on the CPU", False),
    "pipeline": ("FC on the CPU", True),
    "streamed": ("FC on the CPU, convolutions streamed", False),
}


def _checked(run: dict[str, Any], name: str, artifact: Path) -> dict[str, Any]:
    """A run, and whether its outputs are right."""
    outputs = Path(f"{artifact}.npz")
    if "failed" in run:
        return run
    right = _child("check", name, outputs, artifact.parent)
    outputs.unlink()
    return {**run, "check": right}


def budgets(
    name: str, target: str, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for no budget, and one for each."""
    inputs = folder / f"{name}.inputs.npz"
    unplanned = folder / f"{name}.{target}.{NO_BUDGET}.tvme"
    usual = CUDA_BUDGET if target == "cuda" else BUDGETS.get(name, BUDGET)
    wanted = options.budgets or usual
    for budget in (NO_BUDGET, *wanted.split(",")):
        row: dict[str, Any] = {"network": name, "target": target, "budget": budget}
        row["compiled"] = compiled = _child("compile", name, target, budget, folder)
        artifact = folder / f"{name}.{target}.{budget}.tvme"
        streams = any(plan["taken"] and plan["pipelined"] for plan in compiled.get("plans", ()))
        if "predicted" in compiled:
            row["compiled"] = compiled = _as_run(compiled, streams)
            row["cold"] = _cold(artifact, inputs, target)
            run = measure_peak(
                artifact,
                inputs,
                frames=options.frames,
                seconds=options.seconds,
                pipelined=streams,
            )
            row["run"] = _checked(run, name, artifact)
        if budget != NO_BUDGET:
            row["budget_bytes"] = _bytes(budget)
            if "predicted" in compiled:
                row["limited"] = _in_limit(artifact, inputs, budget, pipelined=streams)
                artifact.unlink()
            if unplanned.exists() and target != "llvm":  # there both are mapped
                row["unplanned_limited"] = _in_limit(unplanned, inputs, budget)
        yield row
    unplanned.unlink(missing_ok=True)


def _cold(artifact: Path, inputs: Path, target: str) -> dict[str, Any] | None:
    """The first process of an artifact, in which pocl compiles kernels for their work-groups.

    It keeps them in a cache of its own, for all later ones.
    """
    if target != "opencl":
        return None
    run = measure_peak(artifact, inputs, frames=0)
    Path(f"{artifact}.npz").unlink(missing_ok=True)
    return run


def _in_limit(
    artifact: Path, inputs: Path, budget: str, *, pipelined: bool = False
) -> dict[str, Any]:
    with limited(_bytes(budget)) as limit:
        run = measure_peak(artifact, inputs, frames=1, pipelined=pipelined, limit=limit)
    Path(f"{artifact}.npz").unlink(missing_ok=True)
    return {"limit": limit.kind, **run}


def strategies(
    name: str, target: str, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for each strategy and kind of memory; a plan is compiled once."""
    plans: dict[str, dict[str, Any]] = {}
    artifact, inputs = folder / f"{name}.{target}.plan.tvme", folder / f"{name}.inputs.npz"
    cold: dict[str, Any] | None = None
    kinds = options.memory if target == "opencl" else ["separate"]
    for strategy, (plan, pipelined) in _STRATEGIES.items():
        if target == "llvm" and strategy != "as is":
            continue
        if plan not in plans:
            plans[plan] = _child("compile_plan", name, target, plan, folder)
            if "predicted" in plans[plan]:
                cold = _cold(artifact, inputs, target)
        for kind in kinds:
            copies = target == "opencl" and kind == "separate"
            row: dict[str, Any] = {"network": name, "target": target, "strategy": strategy}
            compiled = _as_run(_as_copied(plans[plan], copies), pipelined)
            row |= {"memory": kind, "compiled": compiled}
            if "predicted" in plans[plan]:
                run = measure_peak(
                    artifact,
                    inputs,
                    frames=options.frames,
                    seconds=options.seconds,
                    pipelined=pipelined,
                    copies=copies,
                )
                row["run"] = _checked(run, name, artifact)
                row["cold"] = None if copies else cold
            yield row
    artifact.unlink(missing_ok=True)


def _as_run(compiled: dict[str, Any], pipelined: bool) -> dict[str, Any]:
    """Prediction for frames that are pipelined: two are on their way."""
    if not pipelined or "predicted" not in compiled:
        return compiled
    return {**compiled, "predicted": compiled["predicted"] + compiled["frame"]}


def _as_copied(compiled: dict[str, Any], copies: bool) -> dict[str, Any]:
    """Prediction where a device that is the CPU has memory of its own.

    It has a copy of its weights, and one window that the parts of others are copied to.
    """
    if not copies or "predicted" not in compiled:
        return compiled
    parts = compiled["parts"]
    lent = parts["weights_by_device"].get("opencl", 0)
    on_file = parts["mapped"] - sum(
        parts["weights_by_device"].get(place, 0) for place in ("llvm", "streamed")
    )
    more = min(lent, on_file) + compiled["largest part"]
    return {**compiled, "predicted": compiled["predicted"] + more}


def layers(name: str, folder: Path) -> dict[str, Any]:
    """Table 4: all memory, and the share of the fully connected layers in the weights."""
    import tvm_edge

    report = tvm_edge.analyze(folder / f"{name}.onnx", "llvm")
    assert report.memory is not None
    weights = sum(operator.weight_bytes for operator in report.operators)
    dense = sum(o.weight_bytes for o in report.operators if o.op_type in ("Gemm", "MatMul"))
    convolutions = sum(o.op_type == "Conv" for o in report.operators)
    return {
        "network": name,
        "convolutions": convolutions,
        "total_gib": (weights + report.memory.activations) / 2**30,
        "fc_share": dense / weights,
    }


def floor(target: str, folder: Path) -> dict[str, Any]:
    """The constants of ``tvm_edge/memory/floor.py``: of the process, and of a kernel."""
    points = []
    for count in (2, 42):
        compiled = _child("empty", target, count, folder)
        if "failed" in compiled:
            return {"target": target, **compiled}
        run = measure_peak(folder / f"empty{count}.tvme", folder / "empty.npz", frames=3)
        if "failed" in run:
            return {"target": target, **run}
        parts = compiled["parts"]
        resident = parts["weights"] - parts["mapped"] + parts["activations"]
        points.append((compiled["kernels"], run["peak"] - resident, run["device"]))
    (few, least, device), (many, most, _) = points
    kernel = (most - least) / (many - few)
    process = (least - kernel * few) / 2**20
    return {
        "target": target,
        "process_mib": round(process, 1),
        "kernel_kib": round(kernel / 2**10, 1),
        "device_mib": round(device / 2**20, 1),
    }


def _bytes(budget: str) -> int:
    from tvm_edge.memory.budget import parse_budget

    nbytes = parse_budget(budget)
    assert nbytes is not None
    return nbytes


def _here(target: str) -> bool:
    from tvm_edge import devices

    return target == "llvm" or any(device.target == target for device in devices())


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("memory", __doc__)
    parser.shared(networks=NETWORKS, targets=TARGETS, part=Among(PARTS, PARTS))
    parser.shared(seconds=5.0, json=None)
    parser.add_argument("--budgets", help="with commas between them, such as 1GiB,512MiB")
    parser.add_argument("--memory", choices=MEMORY, nargs="+", default=MEMORY)
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the ONNX files here")
    if "--quick" in arguments:
        parser.set_defaults(**QUICK)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = _options(arguments)
    targets = [target for target in options.targets if _here(target)]
    result: dict[str, Any] = {"machine": describe_machine(), "targets": targets}
    opened: Any = nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with opened as where:
        folder = Path(where)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["POCL_CACHE_DIR"] = str(folder / "pocl")  # empty at first
        if options.floor:
            result["floor"] = [floor(target, folder) for target in targets]
        else:
            _measure(options, targets, folder, result)
    save_json(options.json, result)
    print(json.dumps(result["machine"]))
    print(tables.written(result))


def _measure(
    options: argparse.Namespace, targets: list[str], folder: Path, result: dict[str, Any]
) -> None:
    parts: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
        "budgets": budgets,
        "strategies": strategies,
    }
    for name in options.networks:
        if not (folder / f"{name}.expected.npz").exists():
            failed = _child("network", name, folder).get("failed")
            if failed:
                result.setdefault("failed", {})[name] = failed
                print(f"{name}: {failed}", file=sys.stderr, flush=True)
                continue
        for part, rows in parts.items():
            for target in targets if part in options.part else ():
                for row in rows(name, target, options, folder):
                    result.setdefault(part, []).append(row)
                    print(tables.line(row), file=sys.stderr, flush=True)
                    save_json(options.json, result)
        if "layers" in options.part:
            result.setdefault("layers", []).append(layers(name, folder))
        if not options.folder:
            for path in folder.glob(f"{name}.*"):
                path.unlink()
