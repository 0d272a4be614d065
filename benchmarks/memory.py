"""Very deep networks in little memory: ``python -m benchmarks.memory``.

Tables 1 to 4 of Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", for
YOLOv1 (original, medium, small, large), VGG16 and VGG19. Every compilation and every run has a
process of its own; the latter loads the artifact on TVM's runtime tier and nothing else. Its peak
is anonymous and shared memory, sampled every 2 ms, and what the GPU's memory in use grows by
(NVML). Outputs are compared with ONNX Runtime's. With pocl "cold" is the peak of an artifact's
first process, in which pocl compiles kernels once more, and which is not what is predicted.

**Budgets** (``--part budgets``). Each network with no budget and with those of ``--budgets``
(256 MiB, and for YOLOv1 1 GiB and 512 MiB as well; with CUDA 1 GiB): the plan that was taken, the
predicted peak, the measured one, and the time of a frame (the median of ``--frames``, 25 as in the
paper, or as many as ``--seconds`` allow, behind one that warms up). Bars: the peak is within the
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

``--networks``, ``--targets llvm,opencl,cuda``; ``--quick`` for two small networks, one budget and
few frames; ``--folder`` to keep the ONNX files; ``--json FILE``, written after each row;
``--floor`` measures the constants of ``tvm_edge/memory/floor.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks import memory_tables, nvml
from benchmarks.limited import Limit, limited
from benchmarks.machine import describe_machine
from benchmarks.memory_jobs import JOBS, NO_BUDGET
from benchmarks.processes import is_child, run_child, serve

NETWORKS = ("yolov1", "yolov1_medium", "yolov1_small", "yolov1_large", "vgg16", "vgg19")
TARGETS = ("llvm", "opencl", "cuda")
BUDGETS = {"yolov1": "1GiB,512MiB,256MiB"}
BUDGET = "256MiB"  # of the others
CUDA_BUDGET = "1GiB"  # of all: CUDA's context alone takes more than half of that
MEMORY = ("separate", "unified")
PARTS = ("budgets", "strategies", "layers")
QUICK = {
    "networks": "yolov1_small,vgg16",
    "frames": 3,
    "seconds": 2.0,
}

_MODULE = "benchmarks.memory"
_TIMEOUT = 900.0
_ALONE = {"TVM_USE_RUNTIME_LIB": "1", "TVM_EDGE_OPENCL_CACHE": "0"}
# By strategy the plan, and whether frames are pipelined.
_STRATEGIES = {
    "as is": ("as is", False),
    "split": ("FC split ×4", False),
    "offload": ("FC on the CPU", False),
    "pipeline": ("FC on the CPU", True),
    "streamed": ("FC on the CPU, convolutions streamed", False),
}


def measured(
    artifact: Path,
    inputs: Path,
    *,
    frames: int,
    seconds: float = 600.0,
    pipelined: bool = False,
    copies: bool = False,
    limit: Limit | None = None,
) -> dict[str, Any]:
    """What a process that only loads an artifact and runs it takes, at its peak.

    With `copies` a device that is the CPU has weights, and memory, of its own, as any other GPU.

    Returns
    -------
    dict
        ``peak`` and ``device`` (bytes of the process, and of a GPU's own memory), and what the run
        said; ``failed`` if it did not live.
    """
    from benchmarks.process_memory import Peak

    arguments = ("run", artifact, inputs, frames, seconds, pipelined, copies, artifact.parent)
    apart = {"TVM_EDGE_OPENCL_MEMORY": "buffer"} if copies else {}
    before = nvml.memory_in_use()
    with subprocess.Popen(
        [sys.executable, "-m", _MODULE, "--child", *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **_ALONE, **apart},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit.enter if limit else None,
    ) as child:
        with Peak(child.pid) as peak, _device_peak(before) as device:
            try:
                out, err = child.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
                err += f"ended after {_TIMEOUT:.0f} s"
    found: dict[str, Any] = {"peak": peak.nbytes + device[0], "device": device[0]}
    if child.returncode == 0:
        return {**found, **json.loads(out.splitlines()[-1])}
    reason = (err.strip().splitlines() or ["no message"])[-1][:200]
    return {**found, "failed": f"exit status {child.returncode}: {reason}"}


@contextmanager
def _device_peak(before: int | None) -> Iterator[list[int]]:
    """What the first GPU's memory in use grows by, at its peak, meanwhile."""
    import threading

    grown = [0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            grown[0] = max(grown[0], (nvml.memory_in_use() or 0) - (before or 0))

    thread = threading.Thread(target=sample, daemon=True)
    if before is not None:
        thread.start()
    try:
        yield grown
    finally:
        done.set()
        if before is not None:
            thread.join()


def _checked(run: dict[str, Any], name: str, artifact: Path) -> dict[str, Any]:
    """A run, and whether its outputs are right."""
    outputs = Path(f"{artifact}.npz")
    if "failed" in run:
        return run
    right = run_child(_MODULE, "check", name, outputs, artifact.parent)
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
        row["compiled"] = compiled = run_child(_MODULE, "compile", name, target, budget, folder)
        artifact = folder / f"{name}.{target}.{budget}.tvme"
        streams = any(plan["taken"] and plan["pipelined"] for plan in compiled.get("plans", ()))
        if "predicted" in compiled:
            row["compiled"] = compiled = _as_run(compiled, streams)
            row["cold"] = _cold(artifact, inputs, target)
            run = measured(
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
    run = measured(artifact, inputs, frames=0)
    Path(f"{artifact}.npz").unlink(missing_ok=True)
    return run


def _in_limit(
    artifact: Path, inputs: Path, budget: str, *, pipelined: bool = False
) -> dict[str, Any]:
    with limited(_bytes(budget)) as limit:
        run = measured(artifact, inputs, frames=1, pipelined=pipelined, limit=limit)
    Path(f"{artifact}.npz").unlink(missing_ok=True)
    return {"limit": limit.kind, **run}


def strategies(
    name: str, target: str, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for each strategy and kind of memory; a plan is compiled once."""
    plans: dict[str, dict[str, Any]] = {}
    artifact, inputs = folder / f"{name}.{target}.plan.tvme", folder / f"{name}.inputs.npz"
    cold: dict[str, Any] | None = None
    kinds = options.memory.split(",") if target == "opencl" else ["separate"]
    for strategy, (plan, pipelined) in _STRATEGIES.items():
        if target == "llvm" and strategy != "as is":
            continue
        if plan not in plans:
            plans[plan] = run_child(_MODULE, "compile_plan", name, target, plan, folder)
            if "predicted" in plans[plan]:
                cold = _cold(artifact, inputs, target)
        for kind in kinds:
            copies = target == "opencl" and kind == "separate"
            row: dict[str, Any] = {"network": name, "target": target, "strategy": strategy}
            compiled = _as_run(_as_copied(plans[plan], copies), pipelined)
            row |= {"memory": kind, "compiled": compiled}
            if "predicted" in plans[plan]:
                run = measured(
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
    """What is predicted of frames that are pipelined: two are on their way."""
    if not pipelined or "predicted" not in compiled:
        return compiled
    return {**compiled, "predicted": compiled["predicted"] + compiled["frame"]}


def _as_copied(compiled: dict[str, Any], copies: bool) -> dict[str, Any]:
    """What is predicted where a device that is the CPU has memory of its own.

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
        compiled = run_child(_MODULE, "empty", target, count, folder)
        if "failed" in compiled:
            return {"target": target, **compiled}
        run = measured(folder / f"empty{count}.tvme", folder / "empty.npz", frames=3)
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--budgets")
    parser.add_argument("--memory", default=",".join(MEMORY), help="separate, unified or both")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, and 3 frames")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    if "--quick" in sys.argv:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def main() -> None:
    if is_child():
        serve(JOBS)
        return
    options = _options()
    targets = [target for target in options.targets.split(",") if _here(target)]
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
    _keep(options, result)
    print(json.dumps(result["machine"]))
    print(memory_tables.written(result))


def _keep(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


def _measure(
    options: argparse.Namespace, targets: list[str], folder: Path, result: dict[str, Any]
) -> None:
    parts: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
        "budgets": budgets,
        "strategies": strategies,
    }
    wanted = options.part or PARTS
    for name in options.networks.split(","):
        if not (folder / f"{name}.expected.npz").exists():
            failed = run_child(_MODULE, "network", name, folder).get("failed")
            if failed:
                result.setdefault("failed", {})[name] = failed
                print(f"{name}: {failed}", file=sys.stderr, flush=True)
                continue
        for part, rows in parts.items():
            for target in targets if part in wanted else ():
                for row in rows(name, target, options, folder):
                    result.setdefault(part, []).append(row)
                    print(memory_tables.line(row), file=sys.stderr, flush=True)
                    _keep(options, result)
        if "layers" in wanted:
            result.setdefault("layers", []).append(layers(name, folder))
        if not options.folder:
            for path in folder.glob(f"{name}.*"):
                path.unlink()


if __name__ == "__main__":
    main()
